"""A script under the embedded tracer is the script under Python: compared side by side, as processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfharness.model import nsys_schema as schema
from perfharness.tracer.output import complete_traces, log_paths
from perfharness.tracer.ranges import read_log
from perfharness.tracer.session import GPU_DEVICE_FILES
from tests.integration.launches import in_a_launch

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "launcher")])

RECORD = """
from perfharness.model import range_log
log = range_log.active()
if log is not None:
    key = log.key(range_log.RangeAttributes("perfharness", "stage")) << range_log.OP_BITS
    log.writer().event(key | range_log.PUSH)
    log.writer().event(key | range_log.POP)
"""
"""What a recorder does in a traced process, and nothing in any other."""


@dataclass(frozen=True)
class Outcome:
    stdout: str
    stderr: str
    exit_code: int


@dataclass(frozen=True)
class Runner:
    """Runs a script plainly and traced, in one folder."""

    folder: Path

    @property
    def trace(self) -> Path:
        return self.folder / "out" / "trace.sqlite"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "PYTHON"))}
        return {**kept, "PYTHONPATH": PYTHONPATH, "PERFHARNESS_OUTPUT_DIR": str(self.folder / "out")}

    def run(self, *command: str, tracer: str = "") -> Outcome:
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        process = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=in_a_launch(out, tracer) if tracer else self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Outcome(process.stdout, process.stderr, process.returncode)

    def both(self, *command: str) -> Outcome:
        """The outcome, which must be the same plainly and traced."""
        plain = self.run(*command)
        assert self.run(*command, tracer="embedded") == plain
        complete_traces(self.folder / "out")
        return plain

    def write(self, source: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return name


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def meta(trace: Path) -> dict[str, str]:
    with closing(sqlite3.connect(trace)) as connection:
        return dict(connection.execute(f"SELECT name, value FROM {schema.TABLE_PERFHARNESS}"))


def range_names(trace: Path) -> list[str]:
    with closing(sqlite3.connect(trace)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if schema.TABLE_NVTX not in tables:
            return []
        query = (
            f"SELECT s.value FROM {schema.TABLE_NVTX} JOIN {schema.TABLE_STRINGS} s ON s.id = textId "
            f"WHERE eventType IN (59, 60) ORDER BY start"
        )
        return [name for (name,) in connection.execute(query)]


def pids(trace: Path) -> set[int]:
    with closing(sqlite3.connect(trace)) as connection:
        rows = connection.execute(f"SELECT DISTINCT globalTid >> 24 FROM {schema.TABLE_NVTX}")
        return {process & schema.ID_MASK for (process,) in rows}


@pytest.mark.parametrize(
    "source",
    [
        "import sys; print(sys.argv, sys.path[:1], __name__, __file__, __spec__, __package__, __doc__)",
        "import threading\nthreading.Timer(0.05, print, ['thread']).start()\nprint('main')",
        "import atexit\natexit.register(print, 'bye')\nprint('main')\n1 / 0",
        "import os; os._exit(5)",
        "import sys; print('out', flush=True); sys.stdout.close()",
    ],
)  # fmt: skip
def test_same_output_and_exit_code(runner: Runner, source: str) -> None:
    runner.both(runner.write(source), "one", "--two", "-m", "three=4")


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal, sys; signal.signal(15, lambda *a: sys.exit(9)); os.kill(os.getpid(), 15)", 9),
    ],
)
def test_the_trace_is_there_however_the_script_ends(runner: Runner, ending: str, exit_code: int) -> None:
    assert runner.both(runner.write(f"{RECORD}\n{ending}")).exit_code == exit_code
    assert range_names(runner.trace) == ["stage"]
    assert [path.name for path in runner.trace.parent.iterdir()] == ["trace.sqlite"]
    found = meta(runner.trace)
    assert found[schema.META_CUDA_USED] == "no"
    assert int(found[schema.META_CLOCK_ORIGIN_NS]) > 0
    assert found[schema.META_TRACER_VERSION]
    assert found[schema.META_CUDA_TRACED] == "no"
    assert found[schema.META_CUDA_UNTRACED_REASON]


def test_threads_and_exit_functions_still_record(runner: Runner) -> None:
    source = f"""
import atexit, threading, time
def record():
    {RECORD.replace(chr(10), chr(10) + "    ")}
threading.Thread(target=lambda: (time.sleep(0.1), record())).start()
atexit.register(record)
"""
    runner.both(runner.write(source))
    assert range_names(runner.trace) == ["stage", "stage"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_have_traces_of_their_own(runner: Runner, method: str) -> None:
    """Four tasks in a pool, a process and the script itself record one range each."""
    source = f"""
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
def record():
    {RECORD.replace(chr(10), chr(10) + "    ")}
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
    plain = runner.run(runner.write(source))
    assert runner.run("script.py", tracer="embedded") == plain
    assert plain.stdout == "[0, 2, 4, 6]\n0\n"
    own, *traces = complete_traces(runner.trace.parent)
    assert own == runner.trace
    assert range_names(runner.trace) == ["stage"]
    assert [pids(path) for path in traces] == [{int(path.name.split("_")[1])} for path in traces]
    assert [name for path in traces for name in range_names(path)] == ["stage"] * 5
    assert sorted(runner.trace.parent.iterdir()) == sorted([runner.trace, *traces])


def test_a_forked_child_that_is_terminated_at_once_ends(runner: Runner) -> None:
    """As a worker of a pool that is closed before the worker begins: the pool would wait for it for ever."""
    source = f"""
import os, signal, time
{RECORD}
if log is not None:
    from perfharness.tracer.session import Session
    Session.current._handle_sigterm()  # as where the GPU is traced
ends = set()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(100)  # what a lost signal leaves does not stay
        time.sleep(60)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    ends.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ends, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    assert runner.both(runner.write(source)).stdout == "{-15} set()\n"


@pytest.mark.skipif(any(map(os.path.exists, GPU_DEVICE_FILES)), reason="the process itself writes what the GPU did")
def test_sigterm_ends_a_process_that_never_comes_back_from_c(runner: Runner) -> None:
    """A handler would never be called: a program that is to end would not. What it recorded and said is kept."""
    source = f"""
import ctypes, os, signal, threading
{RECORD}
signal.alarm(100)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex), libc.pthread_mutex_lock(mutex)
"""
    assert runner.both(runner.write(source)).exit_code == -signal.SIGTERM
    assert range_names(runner.trace) == ["stage"]


@pytest.mark.parametrize("daemon", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_program_that_closes_all_descriptors(runner: Runner, daemon: bool) -> None:
    """As daemons do. The numbers are then those of its own files, which the tracer neither writes nor closes."""
    source = f"""
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
{RECORD}
child = os.fork() if {daemon} else 0
if child:
    os.waitpid(child, 0)
    sys.exit()
os.closerange(3, 100)
files = [open(f"file_{{number}}", "w") for number in range(8)]
{RECORD.replace('"stage"', '"new"')}
if log is not None:
    writer = log.writer()
    for _ in range(range_log.REGION_BYTES // range_log.RECORD_BYTES // 2):
        writer.event(key | range_log.PUSH), writer.event(key | range_log.POP)
for file in files:
    file.write("its own"), file.flush()
    print(os.fstat(file.fileno()).st_size, open(file.name).read())
sys.stdout.flush()
"""
    assert runner.both(runner.write(source)).stdout == "7 its own\n" * 8
    complete_traces(runner.trace.parent)
    names = [set(range_names(path)) for path in sorted(runner.trace.parent.glob("*.sqlite"))]
    assert sorted(names, key=sorted) == ([{"new"}, {"stage"}] if daemon else [{"stage", "new"}])


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_is_killed_leaves_what_it_recorded(runner: Runner, end: str) -> None:
    runner.run(runner.write(f"import os, signal\n{RECORD}\n{end}"), tracer="embedded")
    assert not runner.trace.exists()
    (runner.trace.parent / ".gpu_4194305.records").write_bytes(b"of no process")
    assert complete_traces(runner.trace.parent) == [runner.trace]
    assert [path.name for path in runner.trace.parent.iterdir()] == ["trace.sqlite"]
    assert range_names(runner.trace) == ["stage"]
    assert meta(runner.trace)[schema.META_CUDA_TRACED] == "no"


def test_a_child_that_outlives_the_script_is_taken_in_once(runner: Runner) -> None:
    source = f"""
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
reader, writer = os.pipe()
{RECORD}
if os.fork() == 0:
    os.setsid()
    os.close(1), os.close(2)
    {RECORD.replace(chr(10), chr(10) + "    ")}
    os.write(writer, b"x")
    import time
    time.sleep(60)
os.read(reader, 1)
"""
    runner.run(runner.write(source), tracer="embedded")
    complete_traces(runner.trace.parent, of_running=False)
    assert range_names(runner.trace) == ["stage"]
    (left,) = log_paths(runner.trace.parent)
    names = left.with_suffix(".names")
    kept = left.read_bytes(), names.read_bytes()
    pid = read_log(left).facts.pid
    assert complete_traces(runner.trace.parent, of_running=False) == []
    os.kill(pid, signal.SIGKILL)
    (trace,) = complete_traces(runner.trace.parent)
    assert pids(trace) == {pid}
    assert range_names(trace) == ["stage"]
    left.write_bytes(kept[0])  # as if it had been killed before it could remove them
    names.write_bytes(kept[1])
    assert complete_traces(runner.trace.parent) == [trace]
    assert range_names(trace) == ["stage"]
    assert range_names(runner.trace) == ["stage"]
    assert log_paths(runner.trace.parent) == []


def test_a_forked_child_that_exits_normally_writes_nothing(runner: Runner) -> None:
    source = f"""
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(os.path.exists(os.path.join(os.environ["PERFHARNESS_OUTPUT_DIR"], "trace.sqlite")))
{RECORD}
"""
    assert runner.run(runner.write(source), tracer="embedded").stdout == "False\n"
    complete_traces(runner.trace.parent)
    assert range_names(runner.trace) == ["stage"]
