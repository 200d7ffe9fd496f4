"""The probe in real processes: what it says of their threads, against what they count themselves."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from perfharness.model.host_samples import HostEventKind, HostProbe, HostSamples, HostState
from perfharness.trace import open_trace
from perfharness.trace.host_samples import read_host_probe
from tests.integration.launches import NSYS, NVTX_SITE, in_a_launch, wait_for
from tests.integration.nsys_profile import nsys_profile

SPLIT = """
import json, sys, threading, time
from perfharness import PerfRecorder

def heavy():
    x = 0
    for i in range(7000):
        x ^= i

def light():
    x = 0
    for i in range(3000):
        x ^= i

perf = PerfRecorder("pipe")

spent = []

def loop(batches):
    clock, of_heavy, of_light = time.perf_counter_ns, 0, 0
    for index in range(batches):
        with perf.batch(index):
            with perf.range("split"):
                for _ in range(20):
                    start = clock()
                    heavy()
                    between = clock()
                    light()
                    of_heavy, of_light = of_heavy + between - start, of_light + clock() - between
            with perf.range("sleep"):
                time.sleep(0.002)
    spent.append((of_heavy, of_light))

threads = [threading.Thread(target=loop, args=(40,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
perf.finalize()
of_heavy, of_light = map(sum, zip(*spent))
said = {"heavy": of_heavy / (of_heavy + of_light), "threads": [thread.native_id for thread in threads]}
json.dump(said, open(sys.argv[1], "w"))
"""

STATES = """
import asyncio, json, os, select, socket, subprocess, sys, threading, time
here = {}
held = threading.Lock(); held.acquire()
reading, writing = os.pipe()

def named(name, wait):
    def run():
        here[name] = threading.get_native_id()
        wait()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()

from perfharness import PerfRecorder
perf = PerfRecorder("pipe")
child = subprocess.Popen(["sleep", "30"], stdout=subprocess.PIPE)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
any_address = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
any_address.bind(("0.0.0.0", 0))
named("SLEEP", lambda: time.sleep(30))
named("SLEEP of asyncio", lambda: asyncio.run(asyncio.sleep(30)))
named("LOCK", held.acquire)
named("LOCK at a pipe of its own", lambda: os.read(reading, 1))
named("PIPE", lambda: child.stdout.read(1))
named("PIPE by select", lambda: select.select([child.stdout, reading], [], [], 30))
named("LOOPBACK", lambda: client.recv(1))
named("SOCKET", lambda: any_address.recv(1))
named("PROCESS", child.wait)
time.sleep(1.2)
child.kill()
json.dump(here, open(sys.argv[1], "w"))
"""

LOCK_HOLDER = """
import json, sys, threading, time
from perfharness import PerfRecorder
perf = PerfRecorder("pipe")
done = False

def burn():
    while not done:
        pass

def wake():
    for index in range(60):
        with perf.range("wake"):
            time.sleep(0.001)

burner, waker = threading.Thread(target=burn), threading.Thread(target=wake)
burner.start(); waker.start()
waker.join()
done = True
burner.join()
json.dump({"burner": burner.native_id, "waker": waker.native_id}, open(sys.argv[1], "w"))
"""


def run(
    tmp_path: Path, script: str, tracer: str = "none", nsys_options: Sequence[str] = (), apis: str = "nvtx"
) -> tuple[HostProbe, dict[str, object]]:
    """What the probe recorded of a script, and what the script itself wrote; nsys leaves `report` in the folder."""
    path, said, out = tmp_path / "script.py", tmp_path / "said.json", tmp_path / "out"
    path.write_text(script)
    command = [sys.executable, str(path), str(said)]
    environ = explained(out) | {"PERFHARNESS_TRACER": tracer}
    if tracer == "nsys":
        environ |= {"PYTHONPATH": NVTX_SITE}
        nsys_profile(NSYS, tmp_path / "report.nsys-rep", command, environ, *nsys_options, apis=apis, output=out)
    else:
        out.mkdir()
        subprocess.run(command, env=environ, check=True, timeout=120)
    recorded = read_host_probe(out)
    assert recorded is not None
    return recorded.probe, json.loads(said.read_text())


def explained(out: Path) -> dict[str, str]:
    return in_a_launch(out, "none", PERFHARNESS_EXPLAIN="1")


def of_stage(samples: HostSamples, name: str) -> np.ndarray:
    stages = [number for number, path in enumerate(samples.stage_paths) if path[-1] == name]
    return np.flatnonzero(np.isin(samples.stage, stages))


def functions(samples: HostSamples, rows: np.ndarray) -> list[str]:
    """Innermost functions, without what they are defined in."""
    stacks = [samples.stacks[stack] if stack >= 0 else () for stack in samples.stack[rows]]
    return [samples.frames[stack[0]].function.rpartition(".")[2] if stack else "" for stack in stacks]


@pytest.mark.parametrize(
    "tracer",
    ["none", pytest.param("nsys", marks=[pytest.mark.nsys, pytest.mark.slow])],
)
def test_a_stage_of_two_functions_in_three_threads(tmp_path: Path, tracer: str) -> None:
    """Their share of the sampled time is that by their own clock (in which they also wait for the lock and a CPU),
    within five standard deviations of as many independent samples.
    """
    probe, said = run(tmp_path, SPLIT, tracer)
    assert probe.missing == ()
    samples, truth = probe.samples, said["heavy"]
    assert isinstance(truth, float)
    rows = of_stage(samples, "split")
    innermost = functions(samples, rows)
    heavy, light = innermost.count("heavy"), innermost.count("light")
    assert heavy + light > 100
    lengths = {
        name: samples.length_ns[rows][[one == name for one in innermost]].astype(float) for name in ("heavy", "light")
    }
    of_both = np.concatenate([*lengths.values()])
    count = of_both.sum() ** 2 / np.square(of_both).sum()
    share = lengths["heavy"].sum() / of_both.sum()
    assert abs(share - truth) < 5 * math.sqrt(truth * (1 - truth) / count) + 0.01
    assert heavy + light > 0.7 * len(rows)  # the rest is in the recorder, and in its tracer
    assert {int(thread) & 0xFFFFFF for thread in np.unique(samples.thread[rows])} == set(said["threads"])  # type: ignore[call-overload]
    text = SPLIT.splitlines()
    split = np.asarray([one in ("heavy", "light") for one in innermost])
    lines = {samples.frames[samples.stacks[stack][0]].line for stack in samples.stack[rows[split]]}
    assert "x ^= i" in {text[line - 1].strip() for line in lines}


def test_what_threads_wait_for(tmp_path: Path) -> None:
    probe, here = run(tmp_path, STATES)
    samples = probe.samples
    for name, tid in here.items():
        mine = np.flatnonzero((samples.thread & 0xFFFFFF) == tid)
        spent = np.bincount(samples.state[mine], weights=samples.length_ns[mine], minlength=len(HostState))
        assert HostState(int(spent.argmax())) is HostState[name.partition(" ")[0]]
        assert samples.on_cpu_ns[mine].sum() < samples.length_ns[mine].sum() / 2
    waits = probe.events.kind == HostEventKind.PEER
    of_child = {int(thread) & 0xFFFFFF for thread in np.unique(probe.events.thread[waits])}
    assert of_child == {here["PIPE"], here["PIPE by select"], here["PROCESS"]}
    assert {probe.peers[pid] for pid in np.unique(probe.events.detail[waits]).tolist()} == {"sleep"}


def test_who_holds_the_interpreter_lock_while_a_thread_waits_for_it(tmp_path: Path) -> None:
    probe, said = run(tmp_path, LOCK_HOLDER)
    samples = probe.samples
    waits = np.flatnonzero((samples.state == HostState.GIL) & ((samples.thread & 0xFFFFFF) == said["waker"]))
    assert len(waits) > 30
    assert np.mean((samples.gil_holder[waits] & 0xFFFFFF) == said["burner"]) > 0.9
    mine = (samples.thread & 0xFFFFFF) == said["waker"]
    assert (samples.counts[mine] >= 0).all()
    assert 50 <= samples.counts[mine, 2].sum() <= 2000  # 60 sleeps, each with a wait for the lock after it


CROWD = """
import json, os, sys, threading, time, zlib
from perfharness import PerfRecorder
DATA = bytes(1 << 20)
perf = PerfRecorder("pipe")

def compress(until):
    while time.monotonic() < until:
        zlib.compress(DATA)

def together(count):
    began, used = time.monotonic_ns(), time.process_time_ns()
    threads = [threading.Thread(target=compress, args=(time.monotonic() + 0.8,)) for _ in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    cpu.append(time.process_time_ns() - used)
    return began, time.monotonic_ns()

cpu = []

alone = together(1)
crowd = together(3 * len(os.sched_getaffinity(0)))
everywhere = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(everywhere)})
bound = time.monotonic_ns()
time.sleep(0.5)
said = {"alone": alone, "crowd": crowd, "cpu": cpu, "bound": bound, "cpus": len(everywhere)}
open(sys.argv[1], "w").write(json.dumps(said))
"""


def test_more_ready_threads_than_cpus_are_noted(tmp_path: Path) -> None:
    probe, said = run(tmp_path, CROWD)
    events = probe.events

    def crowded_share(first_ns: int, last_ns: int) -> float:
        begin, end = np.clip(events.start_ns, first_ns, last_ns), np.clip(events.end_ns, first_ns, last_ns)
        return float((end - begin)[events.kind == HostEventKind.CROWDED].sum()) / (last_ns - first_ns)

    assert crowded_share(*said["crowd"]) > 0.5  # type: ignore[misc]
    assert crowded_share(*said["alone"]) < 0.2  # type: ignore[misc]
    of_cpu = events.kind == HostEventKind.CPU_TIME
    for began_ended, expected_ns in zip((said["alone"], said["crowd"]), said["cpu"], strict=True):  # type: ignore[call-overload]
        first, last = np.searchsorted(events.start_ns[of_cpu], began_ended)
        edges = events.end_ns[of_cpu][[first - 1, last - 1]] - events.start_ns[of_cpu][[first - 1, last - 1]]
        used_ns = 1000 * events.detail[of_cpu][first:last].sum()
        assert abs(used_ns - expected_ns) <= edges.sum() * os.cpu_count() + 1e6
    changed = events.kind == HostEventKind.CPUS
    assert events.detail[changed].tolist() == ([1] if said["cpus"] > 1 else [])  # type: ignore[operator]
    assert (events.start_ns[changed] >= said["bound"]).all()


ONE_AFTER_ANOTHER = """
import json, sys, threading, time
from perfharness import PerfRecorder
perf = PerfRecorder("pipe")
threads = []

def burn():
    threads.append(threading.get_native_id())
    with perf.range("burn"):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

for _ in range(12):
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
json.dump({"threads": threads}, open(sys.argv[1], "w"))
"""


def test_threads_that_follow_one_another_all_have_samples(tmp_path: Path) -> None:
    """A new thread often gets the address of the one before, and with it what was known of that."""
    probe, said = run(tmp_path, ONE_AFTER_ANOTHER)
    samples = probe.samples
    rows = of_stage(samples, "burn")
    sampled = samples.thread[rows] & 0xFFFFFF
    assert set(sampled.tolist()) == set(said["threads"])  # type: ignore[call-overload]
    spent = np.asarray([samples.length_ns[rows[sampled == thread]].sum() for thread in said["threads"]])  # type: ignore[attr-defined]
    assert (spent > 25_000_000).all()


CONTENDED = """
import json, sys, threading, time
from perfharness import PerfRecorder
perf = PerfRecorder("pipe")

def contend():
    with perf.range("contend"):
        for _ in range(60):
            sum(i * i for i in range(60_000))

threads = [threading.Thread(target=contend) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
perf.finalize()
json.dump({}, open(sys.argv[1], "w"))
"""


@pytest.mark.slow
@pytest.mark.nsys
def test_waits_for_the_interpreter_lock_are_those_that_nsys_records(tmp_path: Path) -> None:
    """The share of samples against nsys's intervals, within five standard deviations of as many waits."""
    probe, _ = run(tmp_path, CONTENDED, "nsys", ["--export=sqlite"], apis="nvtx,python-gil")
    trace = open_trace(tmp_path / "report.sqlite")
    events, ranges = trace.lock_events, trace.ranges
    assert events is not None
    assert len(ranges) == 3
    waited = events.kind == HostEventKind.GIL_WAITED
    exact, waits = 0, 0
    for thread, start, end in zip(ranges.thread, ranges.start_ns, ranges.end_ns, strict=True):
        mine = waited & (events.thread == thread) & (events.start_ns < end) & (events.end_ns > start)
        exact += int((np.minimum(events.end_ns[mine], end) - np.maximum(events.start_ns[mine], start)).sum())
        waits += int(mine.sum())
    share = exact / int((ranges.end_ns - ranges.start_ns).sum())
    samples = probe.samples
    rows = of_stage(samples, "contend")
    lengths = samples.length_ns[rows].astype(np.float64)
    sampled = float(lengths[samples.state[rows] == HostState.GIL].sum() / lengths.sum())
    assert share > 0.3
    assert abs(sampled - share) < 5 * math.sqrt(share * (1 - share) / waits) + 0.02


KILLED = """
import os, signal, sys, time
from perfharness import PerfRecorder
perf = PerfRecorder("pipe")
with perf.range("stage"):
    while time.thread_time() < 0.7:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_samples(tmp_path: Path) -> None:
    path, out = tmp_path / "script.py", tmp_path / "out"
    path.write_text(KILLED)
    out.mkdir()
    ended = subprocess.run([sys.executable, str(path)], env=explained(out), check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL

    def is_there() -> bool:
        recorded = read_host_probe(out)
        return recorded is not None and len(of_stage(recorded.probe.samples, "stage")) > 20

    wait_for(is_there)


FORKING = """
import gc, json, os, sys, time
from perfharness import PerfRecorder
perf = PerfRecorder("pipe")

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

with perf.range("parent"):
    pid = os.fork()
    if not pid:
        with perf.range("child"):
            burn(0.4)
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
try:
    os.wait()
    children = True
except ChildProcessError:
    children = False
json.dump({"pid": os.getpid(), "child": pid, "children": children}, open(sys.argv[1], "w"))
"""


def test_a_forked_child_has_its_own_samples_and_the_sampler_is_nobodys_child(tmp_path: Path) -> None:
    probe, said = run(tmp_path, FORKING)
    assert said["children"] is False
    samples = probe.samples
    rows = of_stage(samples, "child")
    assert len(rows) > 20
    assert {int(thread) >> 24 for thread in np.unique(samples.thread[rows])} == {said["child"]}
    assert {path[1] for path in samples.stage_paths if path[-1] == "child"} == {"parent"}
    events = probe.events
    full = events.detail == 2
    assert ((events.thread[full] >> 24) == said["pid"]).any()
    assert (events.end_ns > events.start_ns).all()


def test_without_an_explaining_pass_nothing_is_sampled(tmp_path: Path) -> None:
    path, out = tmp_path / "script.py", tmp_path / "out"
    path.write_text("from perfharness import PerfRecorder\nPerfRecorder('p')\n")
    out.mkdir()
    subprocess.run([sys.executable, str(path)], env=explained(out) | {"PERFHARNESS_EXPLAIN": ""}, check=True)
    assert read_host_probe(out) is None


PLAIN = """
import sys, time

def burn():
    while time.thread_time() < 0.5:
        pass

burn()
open(sys.argv[1], "w").write('{"name": "%s"}' % __name__)
sys.exit(7)
"""


def test_a_script_without_a_recorder_is_run_with_the_probe(tmp_path: Path) -> None:
    path, said, out = tmp_path / "script.py", tmp_path / "said.json", tmp_path / "out"
    path.write_text(PLAIN)
    out.mkdir()
    command = [sys.executable, str(path), str(said)]
    assert subprocess.run(command, env=explained(out), check=False, timeout=60).returncode == 7
    assert json.loads(said.read_text()) == {"name": "__main__"}
    recorded = read_host_probe(out)
    assert recorded is not None
    samples = recorded.probe.samples
    assert "burn" in functions(samples, np.arange(len(samples)))
    assert samples.stage_paths == []


LATE = """
import sys, threading, time
from perfharness import PerfRecorder

made = []
thread = threading.Thread(target=lambda: made.append(PerfRecorder("late")))
thread.start(); thread.join()
with made[0].range("main"):
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
open(sys.argv[1], "w").write("{}")
"""


def test_the_thread_that_started_the_probe_may_end(tmp_path: Path) -> None:
    probe, _ = run(tmp_path, LATE)
    assert len(of_stage(probe.samples, "main")) > 20
