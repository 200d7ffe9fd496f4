"""The probe in real processes: what it says of their threads, against what they count themselves."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfharness.model.host_samples import HostEventKind, HostProbe, HostSamples, HostState
from perfharness.trace import open_trace
from perfharness.trace.host_samples import read_host_probe
from tests.integration.launches import NSYS, NVTX_SITE, in_a_launch, wait_for
from tests.integration.nsys_profile import nsys_profile

PROGRAM = """
import asyncio, gc, json, os, select, socket, subprocess, sys, threading, time, zlib
made = []
thread = threading.Thread(target=lambda: made.append(__import__("perfharness").PerfRecorder("pipe")))
thread.start(); thread.join()  # the thread that starts the probe ends
perf, said = made[0], {"waits": {}, "pid": os.getpid()}
held = threading.Lock(); held.acquire()

def together(*targets):
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return [thread.native_id for thread in threads]

def waiting(state, wait):
    def run():
        said["waits"][state] = threading.get_native_id()
        wait()
    threading.Thread(target=run, daemon=True).start()

child = subprocess.Popen(["sleep", "30"], stdout=subprocess.PIPE)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
any_address = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
any_address.bind(("0.0.0.0", 0))
ours, theirs = socket.socketpair()
poll = select.poll()
poll.register(child.stdout, select.POLLIN)
waiting("SLEEP", lambda: time.sleep(30))
waiting("SLEEP of asyncio", lambda: asyncio.run(asyncio.sleep(30)))
waiting("LOCK", held.acquire)
waiting("PIPE", lambda: child.stdout.read(1))
waiting("PIPE by a local socket", lambda: ours.recv(1))
waiting("PIPE by poll", lambda: poll.poll(30000))
waiting("SOCKET to this machine", lambda: client.recv(1))
waiting("SOCKET", lambda: any_address.recv(1))
waiting("PROCESS", child.wait)

def heavy():
    x = 0
    for i in range(7000):
        x ^= i

def light():
    x = 0
    for i in range(3000):
        x ^= i

def split():
    clock, of_heavy, of_light = time.perf_counter_ns, 0, 0
    for index in range(20):
        with perf.batch(index):
            with perf.range("split"):
                for _ in range(20):
                    start = clock()
                    heavy()
                    between = clock()
                    light()
                    of_heavy, of_light = of_heavy + between - start, of_light + clock() - between
            time.sleep(0.002)
    spent.append((of_heavy, of_light))

spent = []
said["split"] = together(*[split] * 3)
of_heavy, of_light = map(sum, zip(*spent))
said["heavy"] = of_heavy / (of_heavy + of_light)

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def one_of_many():
    with perf.range("one of many"):
        burn(0.05)

said["many"] = [together(one_of_many)[0] for _ in range(8)]

def hold():
    while not done:
        pass

def wake():
    global done
    for index in range(40):
        with perf.range("wake"):
            time.sleep(0.001)
    done = True

done = False
said["holder"], said["waker"] = together(hold, wake)

async def coroutine():
    with perf.range("coroutine"):
        burn(0.1)

asyncio.run(coroutine())

def compress():
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        zlib.compress(bytes(1 << 20))

began, used = time.monotonic_ns(), time.process_time_ns()
together(*[compress] * 3 * len(os.sched_getaffinity(0)))
said["crowd"], said["crowd_cpu"] = (began, time.monotonic_ns()), time.process_time_ns() - used

with perf.range("parent"):
    pid = os.fork()
    if not pid:
        with perf.range("child"):
            burn(0.3)
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
said["forked"] = pid
child.kill()
child.wait()
try:
    os.wait()
except ChildProcessError:
    said["has_children"] = False
json.dump(said, open(sys.argv[1], "w"))
sys.exit(7)
"""


class Sampled(NamedTuple):
    """What the probe recorded of a script, and what the script itself wrote."""

    probe: HostProbe
    said: dict[str, Any]

    @property
    def samples(self) -> HostSamples:
        """The samples."""
        return self.probe.samples

    def of_threads(self, *tids: int) -> np.ndarray:
        """Rows of threads of the process."""
        return np.flatnonzero(np.isin(self.samples.thread & 0xFFFFFF, tids))


def sampled(
    folder: Path, script: str, *, ends: int = 0, tracer: str = "none", nsys_options: Sequence[str] = (), **environ: str
) -> HostProbe | None:
    """The samples of a script; nsys leaves `report` in the folder."""
    path, out = folder / "script.py", folder / "out"
    path.write_text(script)
    command = [sys.executable, str(path), str(folder / "said.json")]
    environment = in_a_launch(out, tracer, **(environ or {"PERFHARNESS_EXPLAIN": "1"}))
    if tracer == "nsys":
        apis = "nvtx,python-gil"
        environment["PYTHONPATH"] = NVTX_SITE
        nsys_profile(NSYS, folder / "report.nsys-rep", command, environment, *nsys_options, apis=apis, output=out)
    else:
        out.mkdir()
        assert subprocess.run(command, env=environment, check=False, timeout=120).returncode == ends
    recorded = read_host_probe(out)
    return None if recorded is None else recorded.probe


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """All of `PROGRAM` in the profiling pass."""
    folder = tmp_path_factory.mktemp("sampled")
    probe = sampled(folder, PROGRAM, ends=7)
    assert probe is not None
    assert probe.missing == ()
    return Sampled(probe, json.loads((folder / "said.json").read_text()))


def of_stage(samples: HostSamples, name: str) -> np.ndarray:
    stages = [number for number, path in enumerate(samples.stage_paths) if path[-1] == name]
    return np.flatnonzero(np.isin(samples.stage, stages))


def functions(samples: HostSamples, rows: np.ndarray) -> np.ndarray:
    """Innermost functions, without what they are defined in."""
    stacks = [samples.stacks[stack] if stack >= 0 else () for stack in samples.stack[rows]]
    return np.asarray([samples.frames[stack[0]].function.rpartition(".")[2] if stack else "" for stack in stacks])


def shares_agree(samples: HostSamples, truth: float) -> bool:
    """Whether `heavy` has its share of the time by its own clock, within five standard deviations of as many
    independent samples.
    """
    rows = of_stage(samples, "split")
    innermost = functions(samples, rows)
    length = samples.length_ns[rows].astype(float)
    both = length[np.isin(innermost, ("heavy", "light"))]
    share = length[innermost == "heavy"].sum() / both.sum()
    count = both.sum() ** 2 / np.square(both).sum()
    return len(both) > 0.7 * len(rows) and abs(share - truth) < 5 * math.sqrt(truth * (1 - truth) / count) + 0.01


def test_a_stage_of_two_functions_in_three_threads(program: Sampled) -> None:
    samples = program.samples
    rows = of_stage(samples, "split")
    assert shares_agree(samples, program.said["heavy"])
    assert set((samples.thread[rows] & 0xFFFFFF).tolist()) == set(program.said["split"])
    text = PROGRAM.splitlines()
    inner = rows[np.isin(functions(samples, rows), ("heavy", "light"))]
    lines = {samples.frames[samples.stacks[one][0]].line for one in samples.stack[inner]}
    assert "x ^= i" in {text[line - 1].strip() for line in lines}


def test_what_threads_wait_for(program: Sampled) -> None:
    samples = program.samples
    for name, tid in program.said["waits"].items():
        mine = program.of_threads(tid)
        spent = np.bincount(samples.state[mine], weights=samples.length_ns[mine], minlength=len(HostState))
        assert HostState(int(spent.argmax())) is HostState[name.partition(" ")[0]], name
        assert samples.on_cpu_ns[mine].sum() < samples.length_ns[mine].sum() / 2


def test_who_holds_the_interpreter_lock_while_a_thread_waits_for_it(program: Sampled) -> None:
    samples, mine = program.samples, program.of_threads(program.said["waker"])
    waits = mine[samples.state[mine] == HostState.GIL]
    assert len(waits) > 10
    assert np.mean((samples.gil_holder[waits] & 0xFFFFFF) == program.said["holder"]) > 0.9


def test_threads_that_follow_one_another_all_have_samples(program: Sampled) -> None:
    """A new thread often gets the address of the one before, and with it what was known of that."""
    samples = program.samples
    rows = of_stage(samples, "one of many")
    thread = samples.thread[rows] & 0xFFFFFF
    assert set(thread.tolist()) == set(program.said["many"])
    assert all(samples.length_ns[rows[thread == one]].sum() > 25_000_000 for one in program.said["many"])


def test_frames_that_may_be_suspended_are_marked(program: Sampled) -> None:
    marked = {frame.function: frame.suspends for frame in program.samples.frames}
    assert (marked["coroutine"], marked["burn"]) == (True, False)


def test_ready_threads_and_cpu_time(program: Sampled) -> None:
    events, (first_ns, last_ns) = program.probe.events, program.said["crowd"]
    begin, end = np.clip(events.start_ns, first_ns, last_ns), np.clip(events.end_ns, first_ns, last_ns)
    assert (end - begin)[events.kind == HostEventKind.CROWDED].sum() > 0.5 * (last_ns - first_ns)
    of_cpu = (events.kind == HostEventKind.CPU_TIME) & (events.thread >> 24 == program.said["pid"])
    during = of_cpu & (events.start_ns >= first_ns) & (events.end_ns <= last_ns)
    used_ns = 1000 * events.detail[during].sum()
    assert 0.7 * program.said["crowd_cpu"] < used_ns < 1.01 * program.said["crowd_cpu"] + 1e6


def test_a_forked_child_has_its_own_samples_and_the_sampler_is_nobodys_child(program: Sampled) -> None:
    assert program.said["has_children"] is False
    samples, events = program.samples, program.probe.events
    rows = of_stage(samples, "child")
    assert len(rows) > 20
    assert {int(thread) >> 24 for thread in np.unique(samples.thread[rows])} == {program.said["forked"]}
    assert {path[1] for path in samples.stage_paths if path[-1] == "child"} == {"parent"}
    full = (events.kind == HostEventKind.COLLECTION) & (events.detail == 2)
    assert ((events.thread[full] >> 24) == program.said["pid"]).any()


@pytest.mark.slow
@pytest.mark.nsys
def test_samples_are_what_nsys_records(tmp_path: Path) -> None:
    """Shares of functions, and waits for the interpreter lock within five standard deviations of as many waits."""
    script = PROGRAM.partition("def burn(")[0] + "json.dump(said, open(sys.argv[1], 'w'))\nchild.kill()\n"
    probe = sampled(tmp_path, script, tracer="nsys", nsys_options=["--export=sqlite"])
    assert probe is not None
    samples, said = probe.samples, json.loads((tmp_path / "said.json").read_text())
    assert shares_agree(samples, said["heavy"])
    trace = open_trace(tmp_path / "report.sqlite")
    events, ranges = trace.lock_events, trace.ranges
    assert events is not None
    waited = events.kind == HostEventKind.GIL_WAITED
    mine = [row for row in range(len(ranges)) if trace.names[ranges.name[row]] == "split"]
    exact, waits = 0, 0
    for thread, start, end in ((ranges.thread[row], ranges.start_ns[row], ranges.end_ns[row]) for row in mine):
        inside = waited & (events.thread == thread) & (events.start_ns < end) & (events.end_ns > start)
        exact += int((np.minimum(events.end_ns[inside], end) - np.maximum(events.start_ns[inside], start)).sum())
        waits += int(inside.sum())
    share = exact / int((ranges.end_ns[mine] - ranges.start_ns[mine]).sum())
    rows = of_stage(samples, "split")
    lengths = samples.length_ns[rows].astype(np.float64)
    of_samples = float(lengths[samples.state[rows] == HostState.GIL].sum() / lengths.sum())
    assert abs(of_samples - share) < 5 * math.sqrt(share * (1 - share) / waits) + 0.02


BURN = """
import os, signal, sys, time
if "bare" not in __file__:
    from perfharness import PerfRecorder
    stage = PerfRecorder("pipe").range("stage")
    stage.__enter__()

def burn():
    while time.thread_time() < 0.5:
        pass

burn()
"""


def test_a_script_without_a_recorder_that_is_killed_leaves_its_samples(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    killed = f"{BURN}os.kill(os.getpid(), signal.SIGKILL)\n"
    sampled(tmp_path / "bare", killed, ends=-signal.SIGKILL)

    def is_there() -> bool:
        recorded = read_host_probe(tmp_path / "bare" / "out")
        if recorded is None:
            return False
        samples = recorded.probe.samples
        return samples.stage_paths == [] and (functions(samples, np.arange(len(samples))) == "burn").sum() > 20

    wait_for(is_there)


def test_the_measured_pass_has_few_samples(tmp_path: Path) -> None:
    probe = sampled(tmp_path, BURN, PERFHARNESS_SAMPLING="1")
    assert probe is not None
    rows = of_stage(probe.samples, "stage")
    assert (functions(probe.samples, rows) == "burn").sum() >= 5
    assert np.median(np.diff(probe.samples.time_ns[rows])) >= 10_000_000


def test_without_being_asked_nothing_is_sampled(tmp_path: Path) -> None:
    assert sampled(tmp_path, "import perfharness", PERFHARNESS_SAMPLING="") is None
