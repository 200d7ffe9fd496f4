"""A program under the embedded tracer is the program under Python, and what it recorded survives however it ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfharness.boot import FOLLOW
from perfharness.model import nsys_schema as schema
from perfharness.tracer.output import complete_traces, log_paths

ROOT = Path(__file__).resolve().parents[2]

RECORD = """
import os, signal, sys, threading, warnings
from perfharness import PerfRecorder
warnings.simplefilter("ignore", DeprecationWarning)
perf = PerfRecorder("app")
def record(name="stage"):
    with perf.range(name):
        pass
"""


@dataclass(frozen=True)
class Outcome:
    stdout: str
    stderr: str
    exit_code: int


@dataclass(frozen=True)
class Runner:
    """Runs a program plainly and traced, in one folder."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, source: str, *arguments: str, tracer: str = "embedded") -> Outcome:
        (self.folder / "program.py").write_text(source)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "PYTHON"))}
        paths = [str(FOLLOW), str(ROOT), str(ROOT / "launcher")]
        given = {"PYTHONPATH": os.pathsep.join(paths), "PERFHARNESS_OUTPUT_DIR": str(self.out)}
        process = subprocess.run(
            [sys.executable, "program.py", *arguments],
            cwd=self.folder,
            env={**kept, **given, "PERFHARNESS_TRACER": tracer},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Outcome(process.stdout, process.stderr, process.returncode)

    def both(self, source: str) -> Outcome:
        """The outcome, which must be the same plainly and traced."""
        plain = self.run(source, tracer="none")
        assert self.run(source) == plain
        return plain

    def names(self) -> list[Counter[str]]:
        """Names of the ranges in each trace, that of the program first; nothing else is left in the folder."""
        traces = complete_traces(self.out)
        assert {path.name for path in self.out.iterdir() if "recorder" not in path.name} == {one.name for one in traces}
        return [range_names(trace) for trace in traces]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    (tmp_path / "out").mkdir()
    return Runner(tmp_path)


def range_names(trace: Path) -> Counter[str]:
    with closing(sqlite3.connect(trace)) as connection:
        query = (
            f"SELECT s.value FROM {schema.TABLE_NVTX} JOIN {schema.TABLE_STRINGS} s ON s.id = textId "
            "WHERE eventType IN (59, 60)"
        )
        return Counter(name for (name,) in connection.execute(query))


def pids(trace: Path) -> set[int]:
    with closing(sqlite3.connect(trace)) as connection:
        rows = connection.execute(f"SELECT DISTINCT globalTid >> 24 FROM {schema.TABLE_NVTX}")
        return {process & schema.ID_MASK for (process,) in rows}


STUCK_IN_C = """
import ctypes
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex), libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("", 0),
        ("import atexit, time; atexit.register(record)\nthreading.Timer(0.1, record).start()", 0),
        ("sys.exit(3)", 3),
        ("1 / 0", 1),
        ("os._exit(5)", 5),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("signal.signal(15, lambda *a: sys.exit(9)); os.kill(os.getpid(), 15)", 9),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        (STUCK_IN_C, -signal.SIGTERM),
        ("import atexit; atexit.register(print, 'bye')\nthreading.Timer(0.05, print, ['thread']).start()", 0),
        ("sys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0", 1),
        ("print('out', flush=True); sys.stdout.close()", 0),
    ],
)
def test_a_program_ends_as_without_a_tracer_and_its_ranges_are_kept(runner: Runner, end: str, exit_code: int) -> None:
    assert runner.both(f"{RECORD}record()\n{end}").exit_code == exit_code
    assert runner.names() == [{"stage": 1 + end.count("record")}]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_have_traces_of_their_own(runner: Runner, method: str) -> None:
    """Four tasks in a pool, a process and the program itself record one range each."""
    source = f"""
import multiprocessing
def work(value):
    record()
    return value * 2
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    with context.Pool(2) as pool:
        print(pool.map(work, range(4)))
    process = context.Process(target=record)
    process.start()
    process.join()
    print(process.exitcode)
    record()
"""
    assert runner.both(RECORD + source).stdout == "[0, 2, 4, 6]\n0\n"
    own, *others = runner.names()
    assert own == {"stage": 1}
    assert sum(others, Counter()) == {"stage": 5}
    traces = [path for path in runner.out.glob("trace_*.sqlite") if range_names(path)]
    assert [pids(path) for path in traces] == [{int(path.name.split("_")[1])} for path in traces]


def test_a_child_that_outlives_the_program_is_taken_in_once(runner: Runner) -> None:
    source = """
import time
reader, writer = os.pipe()
record()
if os.fork() == 0:
    os.setsid()
    os.close(1), os.close(2)
    record("child")
    os.write(writer, b"x")
    time.sleep(60)
os.read(reader, 1)
"""
    runner.run(RECORD + source)
    (own,) = complete_traces(runner.out, of_running=False)
    assert range_names(own) == {"stage": 1}
    (left,) = log_paths(runner.out)
    names = left.with_suffix(".names")
    kept = left.read_bytes(), names.read_bytes()
    os.kill(int(left.name.split("_")[1]), signal.SIGKILL)
    child = complete_traces(runner.out)[-1]
    left.write_bytes(kept[0])  # as if it had been killed before it could remove them
    names.write_bytes(kept[1])
    assert complete_traces(runner.out) == [own, child]
    assert [range_names(path) for path in (own, child)] == [{"stage": 1}, {"child": 1}]
    assert log_paths(runner.out) == []


def test_functions_of_nvtx(runner: Runner) -> None:
    source = """
import contextlib, pickle
import nvtx
nvtx.push_range("push", color="red", domain="d", category="c", payload=7)
nvtx.mark("mark", payload=2.5)
nvtx.pop_range(domain="d")
nvtx.end_range(nvtx.start_range("start"))

@nvtx.annotate(domain="d")
def call(depth):
    with contextlib.suppress(ValueError):
        if depth:
            call(depth - 1)
        raise ValueError

threads = [threading.Thread(target=call, args=(3,)) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
with pickle.loads(pickle.dumps(nvtx.annotate("pickled"))):
    pass
domain = nvtx.get_domain("d")
assert domain is nvtx.get_domain("d")
attributes = domain.get_event_attributes(message="reused", category="c", payload=1)
domain.push_range(attributes)
domain.push_range(message=domain.get_registered_string("registered"), category=domain.get_category_id("k"), payload=2)
domain.pop_range()
domain.pop_range()
domain.end_range(domain.start_range(attributes))
domain.mark(attributes)
"""
    assert runner.run(RECORD + source).stderr == ""
    (trace,) = complete_traces(runner.out)
    with closing(sqlite3.connect(trace)) as connection:
        names = f"SELECT domainId, category, text FROM {schema.TABLE_NVTX} WHERE eventType IN (33, 75)"
        categories = {(domain, category): text for domain, category, text in connection.execute(names)}
        events = connection.execute(
            "SELECT s.value, eventType, end >= start, domainId, category, color, int64Value "
            f"FROM {schema.TABLE_NVTX} LEFT JOIN {schema.TABLE_STRINGS} s ON s.id = textId "
            "WHERE eventType NOT IN (33, 75) AND s.value NOT LIKE 'perfharness.%' ORDER BY start"
        ).fetchall()
    found = [
        (*event, categories.get((domain, None)), categories.get((domain, category)) if category else None, payload)
        for *event, domain, category, _, payload in events
    ]
    nested, numbered, mark = schema.NVTX_PUSH_POP_RANGE, schema.NVTX_START_END_RANGE, schema.NVTX_MARK_EVENT
    calls = [one for one in found if one[0] == "call"]
    assert calls == [("call", nested, 1, "d", None, None)] * 16
    assert [one for one in found if one not in calls] == [
        ("push", nested, 1, "d", "c", 7),
        ("mark", mark, None, None, None, None),
        ("start", numbered, 1, None, None, None),
        ("pickled", nested, 1, None, None, None),
        ("reused", nested, 1, "d", "c", 1),
        ("registered", nested, 1, "d", "k", 2),
        ("reused", numbered, 1, "d", "c", 1),
        ("reused", mark, None, "d", "c", 1),
    ]
    assert events[0][5] & 0xFFFFFF == 0xFF0000


def test_a_disabled_nvtx_stays_as_it_is(runner: Runner) -> None:
    source = f"import os\nos.environ['NVTX_DISABLE'] = '1'\nimport nvtx\n{RECORD}record()\nnvtx.mark('m')"
    assert runner.run(source).exit_code == 0
    assert runner.names() == [{"stage": 1}]


def test_an_output_folder_that_cannot_be_written_to_does_not_stop_the_program(runner: Runner) -> None:
    runner.out.rmdir()
    runner.out.write_text("a file where the folder should be")
    assert runner.run(f"{RECORD}record()\nprint('ran')").stdout == "ran\n"


def test_start_up_is_light(runner: Runner) -> None:
    heavy = ["numpy", "sqlite3", "pyarrow", "rich", "typer", "perfharness.tracer.output", "nvtx"]
    source = f"import sys\nimport perfharness.recorder\nprint([name for name in {heavy!r} if name in sys.modules])"
    assert runner.both(source).stdout == "[]\n"
