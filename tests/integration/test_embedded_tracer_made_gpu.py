"""GPU work under the embedded tracer, where a library that is made here answers as the CUDA driver and CUPTI."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.coverage import find_untraced_work
from perfharness.boot import FOLLOW
from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Severity
from perfharness.trace import open_trace
from perfharness.tracer.output import complete_traces

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

PACKAGES = {
    # The machine has a GPU, and CUPTI hangs for a shorter time.
    "sitecustomize.py": """
from perfharness.tracer import gpu, session
session.GPU_DEVICE_FILES = ("/",)
gpu.STALLED_S = 0.3
""",
    "torch/__init__.py": "import torch.cuda\n",
    "torch/cuda/__init__.py": """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
def _lazy_init():
    driver.cuInit(0)
from torch.cuda import memory, nvtx
""",
    "torch/cuda/memory.py": "from torch.cuda import _lazy_init\ndef free():\n    _lazy_init()\n",
    "torch/cuda/nvtx.py": "def range_push(text): ...\ndef range_start(text): ...\ndef mark(text): ...\n",
}

BEGIN = """
import os, signal, sys, threading
from perfharness import PerfRecorder
import torch
from torch.cuda import driver
perf = PerfRecorder("app")

def work(count=1):
    torch.cuda._lazy_init()
    with perf.range("infer"):
        for _ in range(count):
            driver.launch()
        driver.wait_for_it()

def fork(do, end="os._exit(0)"):
    child = os.fork()
    if not child:
        do()
        exec(end)
        sys.exit()
    return os.waitpid(child, 0)
"""


class Machine:
    """Runs programs on a machine whose GPU is made up."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library, self.folder = library, folder
        self.out = folder / "out"
        self.out.mkdir()
        for name, source in PACKAGES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(source)
        for name in ("libcuda.so.1", "nvidia/cu13/lib/libcupti.so.13"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(library, folder / name)

    def run(self, source: str, **variables: str) -> int:
        """Exit code of a program."""
        (self.folder / "program.py").write_text(BEGIN + source)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
        paths = [str(FOLLOW), str(self.folder), str(ROOT), str(ROOT / "launcher")]
        given = {
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_LIBRARY_PATH": str(self.folder),
            "PERFHARNESS_OUTPUT_DIR": str(self.out),
            "PERFHARNESS_TRACER": "embedded",
        }
        command = [sys.executable, "program.py"]
        done = subprocess.run(command, cwd=self.folder, env={**kept, **given, **variables}, timeout=120, check=False)
        return done.returncode

    def traces(self) -> list[tuple[int, str | None, set[Severity]]]:
        """Kernels inside of ranges, why GPU work is missing, and how bad that is; one each trace, the program first."""
        found = []
        for path in complete_traces(self.out):
            trace = open_trace(path)
            analysis = Analysis(trace)
            _, findings = find_untraced_work(trace, analysis.launches)
            kernels = int(analysis.table.projection.operation_count.sum())
            severities = {finding.severity for finding in findings}
            found.append((kernels, trace.meta.gpu_coverage_reason if severities else None, severities))
        return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "libcuda.so.1"
    source = Path(__file__).with_name("made_cupti.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-D_GNU_SOURCE", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", path, source], check=True)
    return path


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    return Machine(library, tmp_path)


TRACED: tuple[str | None, set[Severity]] = (None, set())
FORKED = (schema.CUPTI_FORKED, {Severity.ERROR})


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("threading.Thread(target=work).start()", 0),
    ],
)
def test_the_work_is_in_the_trace_however_the_program_ends(machine: Machine, end: str, exit_code: int) -> None:
    assert machine.run(f"work(3)\n{end}") == exit_code
    kernels = 4 if "Thread" in end else 3
    assert machine.traces() == [(kernels, *TRACED)]
    assert {path.name for path in machine.out.iterdir()} == {"trace.sqlite", "recorder.json"}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # PyTorch is imported, and CUDA is used in the workers first.
        ("fork(work), fork(lambda: fork(work)), work(2)", [(2, *TRACED), (1, *TRACED), (1, *TRACED)]),
        ("fork(work, 'sys.exit(0)')", [(1, *TRACED)]),
        # CUPTI has threads, which a fork does not copy.
        ("work(2), fork(lambda: (driver.cuInit(0), work(5)))", [(2, *TRACED), (0, *FORKED)]),
        ("work(2), fork(lambda: perf.range('host').__enter__())", [(2, *TRACED)]),
    ],
)
def test_forked_workers(machine: Machine, program: str, expected: list[tuple[int, str | None, set[Severity]]]) -> None:
    assert machine.run(program) == 0
    assert [trace for trace in machine.traces() if trace[0] or trace[2]] == expected


@pytest.mark.parametrize(
    ("program", "variables", "reason"),
    [
        ("work()", {"MADE_CUPTI": "taken"}, "subscriber"),
        ("work()", {"CUDA_INJECTION64_PATH": "/x/libToolsInjection64.so"}, "CUDA_INJECTION64_PATH"),
        ("work()", {"NVTX_INJECTION64_PATH": "/x/libToolsInjection64.so"}, "NVTX_INJECTION64_PATH"),
        ("work(), driver.steal()", {}, "another user of CUPTI"),
        ("driver.cuInit(0)\nwith perf.range('infer'): ...", {}, schema.CUPTI_NOT_STARTED),
        ("work(), sys.exit(5)", {"MADE_CUPTI": "hangs"}, schema.CUPTI_STALLED),
        ("work(), os._exit(5)", {"MADE_CUPTI": "hangs"}, schema.CUPTI_STALLED),
        ("work(), os.kill(os.getpid(), signal.SIGKILL)", {}, "ended before"),
    ],
)
def test_a_trace_without_gpu_work_says_why(
    machine: Machine, program: str, variables: dict[str, str], reason: str
) -> None:
    exit_code = machine.run(program, **variables)
    assert exit_code == (-signal.SIGKILL if "SIGKILL" in program else 5 if "hangs" in variables.values() else 0)
    ((kernels, said, severities),) = machine.traces()
    assert kernels == 0
    assert said is not None
    assert reason in said
    assert severities & {Severity.WARNING, Severity.ERROR}


def test_another_tool_in_the_process_above_is_not_another_tool(machine: Machine) -> None:
    assert machine.run("work()", NVTX_INJECTION64_PATH="/x/libcupti.so.13") == 0
    assert machine.traces() == [(1, *TRACED)]


@pytest.mark.parametrize(("explain", "calls"), [("", 1), ("1", 2)])
def test_only_the_profiling_pass_records_calls_that_start_nothing(machine: Machine, explain: str, calls: int) -> None:
    assert machine.run("work()", PERFHARNESS_EXPLAIN=explain) == 0
    (path,) = complete_traces(machine.out)
    trace = open_trace(path)
    assert len(trace.api) == calls
    assert trace.meta.has_all_calls is (explain == "1")
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute(
            f"SELECT value FROM {schema.TABLE_KERNEL} JOIN {schema.TABLE_STRINGS} ON id = shortName"
        ).fetchall()
    assert names == [("fill",)]


def test_the_functions_of_pytorch_are_its_own_again_after_the_first_call(machine: Machine) -> None:
    source = """
same = torch.cuda._lazy_init is torch.cuda.memory._lazy_init
wrapped = torch.cuda._lazy_init
torch.cuda.memory.free()
assert same and torch.cuda._lazy_init is torch.cuda.memory._lazy_init is not wrapped
assert torch.cuda._lazy_init is wrapped.__wrapped__
"""
    assert machine.run(source) == 0


def test_workers_of_a_pool_that_ends_at_once_end(machine: Machine) -> None:
    """A handler of SIGTERM would run only when the worker comes back from a lock that it waits for."""
    source = """
import multiprocessing
work()
for _ in range(20):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(abs, [1])
"""
    assert machine.run(source) == 0
    assert machine.traces()[0] == (1, *TRACED)
