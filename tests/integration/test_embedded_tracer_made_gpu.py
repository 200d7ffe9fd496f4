"""GPU work under the embedded tracer, where a library that is made here answers as the CUDA driver and CUPTI."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.coverage import find_untraced_work
from perfharness.boot import FOLLOW
from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Severity
from perfharness.model.trace import Trace
from perfharness.trace import open_trace
from perfharness.tracer.output import complete_traces
from tests.integration import launches
from tests.integration.launches import NSYS
from tests.integration.test_record import is_listening, record

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ("nvtx_pushpop_trace", "nvtx_gpu_proj_trace")
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
import ctypes, json, os, signal, struct, sys, threading, time
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

FORMS = json.loads(os.environ.get("MADE_FORMS", "{}"))
kept = []

def put(form, /, **values):
    number, length, fields = FORMS[form]
    record = bytearray(length)
    struct.pack_into("<I", record, 0, number)
    for name, value in values.items():
        if isinstance(value, str):
            kept.append(ctypes.create_string_buffer(value.encode()))
            value = ctypes.addressof(kept[-1])
        kind, at = fields[name].split("@")
        struct.pack_into("<" + kind, record, int(at), value)
    driver.put(bytes(record), length)
"""

LENGTHS = {
    18: {"kernel": 208, "copy": 88, "peer": 96, "fill": 88, "graph": 48, "wait": 40, "data": 32},
    130001: {"kernel": 216, "copy": 96, "peer": 96, "fill": 88, "graph": 56, "wait": 56, "data": 40},
    130500: {"kernel": 248, "copy": 112, "peer": 96, "fill": 104, "graph": 56, "wait": 56, "data": 40},
}
"""Bytes of a record by version and kind (`sizeof` in CUPTI's headers); all others are the same in every version."""

KERNEL = (
    "H@6:registers Q@16:start Q@24:end I@40:device I@44:context I@48:stream i@52:grid_x i@60:grid_z i@64:block_x "
    "i@76:static i@80:dynamic I@92:id Q@104:name Q@144:node"
)
FIELDS = {
    "kernel": (10, KERNEL),
    "copy": (1, "B@4:kind B@5:source B@6:target Q@8:bytes Q@16:start Q@24:end I@40:stream I@44:id"),
    "peer": (22, "B@4:kind Q@8:bytes Q@16:start Q@24:end I@44:source_device I@52:target_device I@60:id"),
    "fill": (2, "Q@8:bytes Q@16:start Q@24:end I@44:id H@50:memory"),
    "graph": (51, "I@4:id Q@8:start Q@16:end I@28:graph"),
    "runtime": (5, "I@4:function Q@8:start Q@16:end I@28:thread I@32:id I@36:result"),
    "driver": (4, "I@4:function Q@8:start Q@16:end I@28:thread I@32:id"),
    "wait": (38, "I@4:kind Q@8:start Q@16:end I@24:id I@28:context I@32:stream"),
    "marker": (12, "I@4:flags Q@8:time I@16:id I@20:object I@28:thread Q@40:name Q@48:domain"),
    "data": (13, "I@4:flags I@8:id I@12:payload_kind q@16:payload I@24:color I@28:category"),
    "foreign": (99, "I@4:nothing"),
}
"""Number of each kind, and type and offset of its fields, as in CUPTI's headers."""


def forms(version: int) -> str:
    lengths = {"runtime": 40, "driver": 40, "marker": 56, "foreign": 48, **LENGTHS[version]}
    split = {kind: [word.split(":") for word in words.split()] for kind, (_, words) in FIELDS.items()}
    places = {kind: {name: place for place, name in words} for kind, words in split.items()}
    return json.dumps({kind: (number, lengths[kind], places[kind]) for kind, (number, _) in FIELDS.items()})


class Machine:
    """Runs programs on a machine whose GPU is made up."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library, self.folder = library, folder
        self.out = folder / "out"
        self.out.mkdir()
        for name, source in PACKAGES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(source)
        for name in ("libcuda.so.1", "nvidia/cu13/lib/libcupti.so.13", "nvidia/cu12/lib/libcupti.so.12"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(library, folder / name)

    def prepared(self, source: str, **variables: str) -> dict[str, str]:
        """Write the program; its environment."""
        (self.folder / "program.py").write_text(BEGIN + source)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
        paths = [str(FOLLOW), str(self.folder), str(ROOT), str(ROOT / "launcher")]
        given = {
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_LIBRARY_PATH": str(self.folder),
            "PERFHARNESS_OUTPUT_DIR": str(self.out),
            "PERFHARNESS_TRACER": "embedded",
            "MADE_FORMS": forms(int(variables.get("MADE_VERSION", 130001))),
        }
        return {**kept, **given, **variables}

    def run(self, source: str, **variables: str) -> int:
        """Exit code of a program, whose output is kept."""
        command, environ = [sys.executable, "program.py"], self.prepared(source, **variables)
        done = subprocess.run(command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, timeout=120, check=False)
        self.said = done.stdout
        return done.returncode

    def trace(self, source: str, **variables: str) -> tuple[Path, Trace]:
        """The only trace of a program that initialises CUDA and then puts records."""
        assert self.run(f"torch.cuda._lazy_init()\n{source}", **variables) == 0
        (path,) = complete_traces(self.out)
        return path, open_trace(path)

    def traces(self) -> list[tuple[int, str | None, set[Severity]]]:
        """Kernels inside of ranges, why GPU work is missing, and how bad that is; one each trace, the program first."""
        found = []
        for path in complete_traces(self.out):
            trace = open_trace(path)
            analysis = Analysis(trace)
            _, findings = find_untraced_work(trace, analysis.launches.call, analysis.launches.operation)
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


FOREVER = """
torch.cuda._lazy_init()
for index in range(1 << 30):
    with perf.batch(index, 1):
        work(2)
    time.sleep(0.001)
"""


def test_the_work_of_windows_of_a_process_that_goes_on(machine: Machine) -> None:
    variables = {"PERFHARNESS_ON_DEMAND": "1", "PERFHARNESS_OUTPUT_DIR": "", "PERFHARNESS_TRACER": ""}
    environ = machine.prepared(FOREVER, **variables)
    with subprocess.Popen([sys.executable, "program.py"], cwd=machine.folder, env=environ) as process:
        try:
            launches.wait_for(lambda: is_listening(process.pid))
            for number, batches in enumerate([3, 5, 4]):
                out = machine.folder / f"win_{number}"
                done = record(process.pid, out, "--batches", batches)
                assert done.returncode == 0, done.stderr
                trace = open_trace(out / "proc_0_gpu_0/trace.sqlite")
                assert trace.meta.gpu_coverage == "traced"
                in_batches = Analysis(trace).table.projection.operation_count[trace.ranges.has_payload]
                assert in_batches.tolist() == [2] * batches
        finally:
            process.kill()


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
        ("FORMS['fill'][1] = 48\ntorch.cuda._lazy_init(), put('fill'), put('fill')", {}, "not 88"),
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


def rows(path: Path, table: str, text: str, columns: str) -> list[tuple[Any, ...]]:
    """The text and columns of a table of the trace, by time."""
    query = f"SELECT value, {columns} FROM {table} LEFT JOIN {schema.TABLE_STRINGS} ON id = {text} ORDER BY start"
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def waits_of(path: Path, columns: str) -> list[tuple[Any, ...]]:
    """Columns of the synchronisations of the trace, by time."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM {schema.TABLE_SYNCHRONIZATION} ORDER BY start").fetchall()


FUNCTIONS = {
    "starts work": """
        cudaLaunchKernel_v7000 cudaLaunchKernelExC_v11060 cuLaunchKernelEx cuLaunchCooperativeKernel cuMemsetD32Async
        cudaGraphLaunch_ptsz_v10000 cudaMemcpyAsync_v3020 cudaMemPrefetchAsync_v12020 cuLaunchKernel""",
    "neither": """
        cudaLaunchHostFunc_v10000 cudaGraphMemcpyNodeSetParams_v10000 cudaGraphAddMemsetNode_v10000 cudaMalloc_v3020
        cudaStreamIsCapturing_v10000 cudaEventRecord_v3020 cudaFree_v3020 cudaMallocAsync_v11020 cudaHostAlloc_v3020
        cudaStreamSynchronize_v3020 cudaDeviceSynchronize_v3020 cudaEventQuery_v3020 cudaStreamWaitEvent_v3020
        cudaGetDeviceProperties_v12000 cudaSetDeviceFlags_v3020 cuLibraryLoadData cuModuleLoadData cuMemAlloc_v2
        cuCtxSynchronize cuInit cuDevicePrimaryCtxRetain cudaMemGetInfo_v3020 cudaGraphInstantiate_v12000""",
    "inquiry": """
        cudaGetDevice_v3020 cudaSetDevice_v3020 cudaGetLastError_v3020 cudaPeekAtLastError_v3020 cuCtxGetCurrent
        cudaDeviceGetAttribute_v5000 cuCtxSetCurrent cuDeviceGet cuDeviceGetAttribute cuDeviceGetUuid_v2
        cudaPointerGetAttributes_v4000 __cudaPushCallConfiguration_v9000""",
}


@pytest.mark.parametrize(("explain", "kinds"), [("", ["starts work"]), ("1", ["starts work", "neither"])])
def test_which_functions_are_recorded(machine: Machine, explain: str, kinds: list[str]) -> None:
    names = " ".join(FUNCTIONS.values()).split()
    source = "torch.cuda._lazy_init()\nprint(json.dumps([bool(driver.is_chosen(one)) for one in range(1, 100)]))"
    assert machine.run(source, MADE_FUNCTIONS=" ".join(names), PERFHARNESS_EXPLAIN=explain) == 0
    chosen = [name for name, is_chosen in zip(names, json.loads(machine.said), strict=False) if is_chosen]
    assert chosen == [name for kind in kinds for name in FUNCTIONS[kind].split()]
    (path,) = complete_traces(machine.out)
    assert open_trace(path).meta.has_all_calls is (explain == "1")


@pytest.mark.parametrize("version", ["18", "130500"])
def test_records_of_each_version(machine: Machine, version: str) -> None:
    source = """
put("runtime", function=13, start=1, end=2, thread=77, id=5)
put("kernel", start=10, end=40, id=5, device=1, stream=13, grid_x=8, grid_z=2, block_x=64, registers=32, static=100,
    dynamic=28, node=9, name="_ZN2ns4fillIfEEvPT_i")
put("foreign")
put("copy", start=50, end=60, id=6, bytes=1 << 33, kind=1, source=1, target=3, stream=13)
put("peer", start=61, end=62, id=7, bytes=5, kind=10, source_device=1, target_device=2)
put("fill", start=70, end=80, id=8, bytes=3, memory=2)
put("graph", start=90, end=95, id=9, graph=4)
put("wait", start=96, end=99, id=10, stream=7, kind=3)
"""
    path, trace = machine.trace(source, MADE_VERSION=version)
    assert trace.meta.monotonic_origin_ns is not None
    operations, details = trace.operations, trace.details
    times = zip(operations.start_ns, operations.end_ns, operations.correlation, strict=True)
    found = [(int(start) + trace.meta.monotonic_origin_ns, int(end - start), int(one)) for start, end, one in times]
    assert found == [(10, 30, 5), (50, 10, 6), (61, 1, 7), (70, 10, 8), (90, 5, 9)]
    assert trace.names[details.name[0]] == "fill"
    assert (operations.kind.tolist(), operations.stream[:2].tolist()) == ([0, 1, 1, 2, 3], [13, 13])
    kernel = (details.registers[0], details.shared_bytes[0], details.graph_node[0], operations.device[0])
    assert (*kernel, *details.grid[0][[0, 2]], details.block[0][0]) == (32, 128, 9, 1, 8, 2, 64)
    assert (details.bytes.tolist(), details.copy_kind.tolist()) == ([-1, 1 << 33, 5, 3, -1], [-1, 1, 10, -1, -1])
    assert (details.source[1], details.target[1], details.target[3]) == (0, 2, 1)
    assert (details.source_device[2], details.target_device[2], details.graph_exec[4]) == (1, 2, 4)
    assert (waits_of(path, "syncType, streamId"), trace.api.correlation.tolist()) == ([(3, 7)], [5])


NAMES = {
    "vector_add": "vector_add",
    "vector_add(float*, int)": "vector_add",
    "void gemm<float, 128, (bool)1>(Params<float>)": "gemm",
    "void at::native::elementwise_kernel<4, at::native::Fill<float> >(int, at::Fill<float>)": "elementwise_kernel",
    "void (anonymous namespace)::softmax<3>(float*)": "softmax",
    "at::native::(anonymous namespace)::indexed<int>(int)": "indexed",
    "unsigned long ns::f<(int)4>(g(int))": "f",
    "void ns::outer<ns::inner(int)>::kernel<8>(int)": "kernel",
    "_Zbroken": "_Zbroken",
}


MIXED = f"""
put("runtime", start=10, end=20, thread=1, id=10, function=14, result=700)
put("runtime", start=90, end=0, id=20, function=14), put("runtime", id=21, function=14)
put("runtime", start=2, end=5, thread=1, id=9, function=15)
put("driver", start=12, end=20, thread=1, id=11, function=7)
put("driver", start=12, end=18, thread=2, id=13, function=7)
put("driver", start=22, end=25, thread=1, id=12, function=7)
put("kernel", start=30, end=40, id=11, device=2, context=5, name="k"), put("kernel", id=12, name="k")
put("kernel", start=31, end=41, id=13, name="k"), put("kernel", start=32, end=42, id=30, name="k")
put("wait", start=14, end=19, id=11, context=5, stream=7, kind=3)
put("wait", start=15, end=16, id=12, context=6, stream=8, kind=4)
for at, name in enumerate({list(NAMES)!r}):
    put("kernel", start=100 + at, end=101 + at, name=name)

begun = set()
for word in "a1 b2 b4 a6 c7 c8 d10 e11 d12 e13 m14 o15 p16".split():
    name, at = word[0], int(word[1:])
    flags = 1 if name == "m" else 4 if name in begun else 2
    domain = {{"domain": "NCCL"}} if name == "p" else {{}}
    put("marker", flags=flags, time=at, id=ord(name), object=2, thread=2 if at == 8 else 1, name=name, **domain)
    begun.add(name)
put("data", id=ord("a"), flags=2, color=0xFF0000, category=5, payload=-3, payload_kind=4)
"""


@pytest.fixture(scope="module")
def mixed(library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    """A trace of calls, waits, kernels and ranges of C libraries."""
    return Machine(library, tmp_path_factory.mktemp("mixed")).trace(MIXED, PERFHARNESS_EXPLAIN="1")


def test_short_names(mixed: tuple[Path, Trace]) -> None:
    names = [name for name, _ in rows(mixed[0], schema.TABLE_KERNEL, "shortName", "1")]
    assert names == ["k"] * 3 + list(NAMES.values())


def test_calls_and_waits(mixed: tuple[Path, Trace]) -> None:
    """On thread 1 the runtime call 10 holds the driver call 11, which started kernel 11 and waited; 12 is a driver call
    of its own, 13 one at the same time on thread 2. Call 20 has no end, 21 no times, and 9 is an inquiry. Kernel 30 has
    no call, and kernel 12 no times.
    """
    path, trace = mixed
    assert [finding.code for finding in trace.meta.findings].count("tracer-message") == 2
    columns = "correlationId, globalTid & 0xFFFFFF, returnValue"
    assert rows(path, schema.TABLE_API, "nameId", columns) == [
        ("cudaStreamSynchronize_v3020", 10, 1, 700),
        ("cbid 7", 13, 2, 0),
        ("cbid 7", 12, 1, 0),
    ]
    assert trace.operations.correlation[:3].tolist() == [10, 13, 30]
    assert waits_of(path, "correlationId, syncType, deviceId") == [(10, 3, 2), (12, 4, None)]


def test_ranges_of_c_libraries(mixed: tuple[Path, Trace]) -> None:
    """a and b nest, c is ended by thread 2, d ends while e (later) is open, m is a mark, o and p stay open, of which p
    has a domain of its own.

    a [1 .......... 6]   d [10 ... 12]
      b [2 .. 4]            e [11 ... 13]
    """
    path, trace = mixed
    assert "range-without-end" in [finding.code for finding in trace.meta.findings]
    columns = "eventType, end - start, endGlobalTid & 0xFFFFFF, color, category, int64Value"
    push_pop, start_end = schema.NVTX_PUSH_POP_RANGE, schema.NVTX_START_END_RANGE
    assert [row for row in rows(path, schema.TABLE_NVTX, "textId", columns) if row[0] in list("abcdemop")] == [
        ("a", push_pop, 5, None, 0xFF0000, 5, -3),
        ("b", push_pop, 2, None, None, None, None),
        ("c", start_end, 1, 2, None, None, None),
        ("d", start_end, 2, None, None, None, None),
        ("e", push_pop, 2, None, None, None, None),
        ("m", schema.NVTX_MARK_EVENT, None, None, None, None, None),
        ("o", push_pop, None, None, None, None, None),
    ]


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


@pytest.fixture(scope="module")
def nsys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An nsys whose reports run: in Debian's packages they miss a module that lies in the other half."""
    program = Path(NSYS).resolve()
    target, host = program.parent, program.parent.parent / "host-linux-x64"
    missing = target / "python" / "lib" / "nsysstats.py"
    if not missing.is_file() or (host / "python" / "lib" / "nsysstats.py").exists():
        yield program
        return
    folder = tmp_path_factory.mktemp("nsys")
    for half in (target, host):
        shutil.copytree(half, folder / half.name, copy_function=_link, symlinks=True)
    for path in (target / "python" / "lib").iterdir():
        if not (folder / host.name / "python" / "lib" / path.name).exists():
            _link(path, folder / host.name / "python" / "lib" / path.name)
    yield folder / target.name / program.name
    shutil.rmtree(folder)


def _link(source: Any, target: Any) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def reports(nsys: Path, trace: Path) -> dict[str, list[dict[str, Any]]]:
    prefix = trace.with_name("answer")
    command: list[str | Path] = [nsys, "stats", "-q", "-r", ",".join(REPORTS), "--format", "json", "-o", prefix, trace]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    found = {report: prefix.with_name(f"answer_{report}.json") for report in REPORTS}
    missing = [report for report, path in found.items() if not path.exists()]
    assert not missing, process.stdout + process.stderr
    return {report: json.loads(path.read_text()) for report, path in found.items()}


@pytest.mark.nsys
def test_nsys_stats_agrees_with_our_reader(machine: Machine, nsys: Path) -> None:
    """A copy in `pre`, two kernels in `infer`, one that another thread started meanwhile, and a graph in a batch of
    its own, which nsys's report leaves out.
    """
    source = """
def start(form, number, thread, **values):
    now = time.perf_counter_ns()
    put("runtime", function=13, start=now, end=now + 1, thread=thread, id=number)
    put(form, start=now + 100 * number, end=now + 100 * number + 70, id=number, **values)
own = os.getpid()
with perf.batch(0):
    with perf.range("pre"):
        start("copy", 101, own, bytes=4096, kind=1)
    with perf.range("infer"):
        start("kernel", 102, own, name="k"), start("kernel", 103, own, name="k"), start("kernel", 104, 77, name="k")
with perf.batch(1):
    start("graph", 105, own, graph=3)
"""
    path, trace = machine.trace(source)
    found = reports(nsys, path)
    table = Analysis(trace).table
    columns = (table.ranges.start_ns, table.ranges.end_ns, table.projection.start_ns, table.projection.end_ns)
    times = zip(*(column.tolist() for column in columns), strict=True)
    names, counts = [trace.names[code] for code in table.ranges.name], table.projection.operation_count.tolist()
    ours = list(zip(names, counts, times, strict=True))
    assert sorted((name, count) for name, count, _ in ours) == [
        ("batch", 1),
        ("batch", 3),
        ("infer", 2),
        ("pre", 1),
    ]
    nested = [(row["Name"].rpartition(":")[2], row["Start (ns)"], row["End (ns)"]) for row in found[REPORTS[0]]]
    assert sorted(nested) == sorted((name, start, end) for name, _, (start, end, _, _) in ours)
    keys = ("Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps")
    projected = [(row["Name"].rpartition(":")[2], *(row[key] for key in keys)) for row in found[REPORTS[1]]]
    assert sorted(row for row in projected if row[0]) == sorted(
        (name, start, end - start, count) for name, count, (_, _, start, end) in ours if (name, count) != ("batch", 1)
    )
