"""Starting and stopping CUPTI, on a CUPTI that only writes down what it is asked."""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import ALONE
from perfharness.analysis.diagnosis.workload import build_workload
from perfharness.analysis.timeline.coverage import find_untraced_work
from perfharness.model import environment
from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Severity
from perfharness.trace import open_trace
from perfharness.tracer import cupti, gpu, gpu_tables, injection, native, nvtx_table
from perfharness.tracer.cupti import CuptiError
from perfharness.tracer.layouts import LAYOUTS
from perfharness.tracer.output import complete_traces, write_trace
from perfharness.tracer.records import Columns
from perfharness.tracer.session import Session
from perfharness.tracer.sqlite_file import TraceFile

FUNCTIONS = {
    cupti.DOMAIN_RUNTIME: {17: "cudaGetDevice_v3020", 211: "cudaLaunchKernel_v7000", 41: "cudaMemcpyAsync_v3020"},
    cupti.DOMAIN_DRIVER: {3: "cuDriverGetVersion", 307: "cuLaunchKernel", 9: "cuCtxGetCurrent"},
}

needs_code = pytest.mark.skipif(not native.supported(), reason="no machine code for this processor")


MARKERS = (cupti.KIND_MARKER, cupti.KIND_MARKER_DATA)


class FakeCupti:
    """Returns success from every call, unless set to fail."""

    version = 130001
    selective = True
    failing: tuple[str, int] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str] = []
        self.enabled: list[tuple[str, int]] = []
        self.library = SimpleNamespace(cuptiActivityDisable=lambda kind: 0)

    def call(self, function: str, *arguments: Any) -> None:
        if self.failing is not None and function == self.failing[0]:
            raise CuptiError(function, self.failing[1], "made up")
        self.calls.append(function)
        if function.startswith("cuptiActivityEnable"):
            self.enabled.append((function, arguments[0].value))

    def has(self, function: str) -> bool:
        return self.selective

    def address(self, function: str) -> int:
        return 1  # never called

    def functions(self, domain: int) -> dict[int, str]:
        return FUNCTIONS[domain]

    def dropped_records(self) -> int:
        return 3


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeCupti]]:
    """A machine with a CUDA 13 driver and one CUPTI."""

    class Made(FakeCupti):
        pass

    driver = SimpleNamespace(cuDeviceGetCount=lambda count: 3, cuDriverGetVersion=lambda version: 0)
    for name in gpu.OTHER_TOOLS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpu, "Cupti", Made)
    monkeypatch.setattr(gpu, "MIN_POOL_BYTES", gpu.BUFFER_BYTES)
    monkeypatch.setattr(gpu, "MAX_POOL_BYTES", gpu.BUFFER_BYTES)
    monkeypatch.setattr(cupti, "driver_library", lambda: driver)
    monkeypatch.setattr(cupti, "driver_cuda_version", lambda _: 13000)
    monkeypatch.setattr(cupti, "find_libraries", lambda major: iter([Path(f"libcupti.so.{major}")]))
    monkeypatch.setattr(injection, "supported", lambda: False)
    yield Made
    for name in (injection.CUDA_VARIABLE, injection.NVTX_VARIABLE):  # set for C only
        ctypes.CDLL(None).unsetenv(name.encode())


def started() -> tuple[gpu.GpuTrace, FakeCupti]:
    trace, reason = gpu.start_gpu_trace("/nowhere")
    assert trace is not None, reason
    return trace, cast(FakeCupti, trace.cupti)


def test_only_what_starts_gpu_work_is_asked_for_after_clock_and_buffers_are_set(machine: type[FakeCupti]) -> None:
    trace, library = started()
    assert [number for name, number in library.enabled if name == "cuptiActivityEnable"] == [
        *gpu.OPERATION_KINDS,
        *MARKERS,
    ]
    functions = {(name, number) for name, number in library.enabled if name != "cuptiActivityEnable"}
    assert functions == {
        ("cuptiActivityEnableRuntimeApi", 211),
        ("cuptiActivityEnableRuntimeApi", 41),
        ("cuptiActivityEnableDriverApi", 307),
        ("cuptiActivityEnableDriverApi", 3),
    }
    assert trace.api_names[cupti.DOMAIN_RUNTIME, 211] == "cudaLaunchKernel_v7000"
    before = library.calls[: library.calls.index("cuptiActivityEnable")]
    assert {"cuptiActivityRegisterTimestampCallback", "cuptiActivityRegisterCallbacks"} <= set(before)


needs_injection = pytest.mark.skipif(not injection.supported(), reason="no machine code for this processor")


@needs_injection
@pytest.mark.parametrize(("initialised", "calls"), [(3, 0), (0, 1)])
def test_cupti_is_not_called_before_cuda_is_used(
    machine: type[FakeCupti], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, initialised: int, calls: int
) -> None:
    """Where it is used already, the driver will not start it any more. Without a start a trace is empty, unless CUDA
    was used."""
    monkeypatch.setattr(injection, "supported", lambda: True)
    driver = cast(Any, cupti.driver_library())
    driver.cuDeviceGetCount = lambda count: initialised
    trace, _ = gpu.start_gpu_trace(str(tmp_path))
    assert trace is not None
    library = cast(FakeCupti, trace.cupti)
    assert library.calls.count("cuptiSubscribe") == calls
    assert trace.has_begun == bool(calls)
    if not calls:
        assert trace.stop() == (0, False)
        driver.cuDeviceGetCount = lambda count: 0
        with pytest.raises(gpu.NotStartedError, match=schema.CUPTI_NOT_STARTED):
            trace.stop()
        assert library.calls == []


def test_a_cupti_that_cannot_choose_functions_records_them_all(machine: type[FakeCupti]) -> None:
    machine.selective = False
    _, library = started()
    assert {cupti.KIND_RUNTIME, cupti.KIND_DRIVER} <= {number for _, number in library.enabled}


def test_the_explaining_pass_records_all_calls_but_inquiries_and_waits(
    machine: type[FakeCupti], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.EXPLAIN, "1")
    monkeypatch.setitem(
        FUNCTIONS,
        cupti.DOMAIN_RUNTIME,
        {17: "cudaGetDevice_v3020", 22: "cudaFree_v3020", 131: "cudaStreamSynchronize_v3020"},
    )
    trace, library = started()
    assert trace.all_calls
    kinds = [number for name, number in library.enabled if name == "cuptiActivityEnable"]
    assert kinds == [*gpu.OPERATION_KINDS, cupti.KIND_SYNCHRONIZATION, *MARKERS]
    functions = {number for name, number in library.enabled if name == "cuptiActivityEnableRuntimeApi"}
    assert functions == {22, 131}
    assert {number for name, number in library.enabled if name == "cuptiActivityEnableDriverApi"} == {3, 307}


def test_an_explaining_pass_whose_cupti_refuses_one_function_records_all(
    machine: type[FakeCupti], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.EXPLAIN, "1")
    machine.failing = ("cuptiActivityEnableRuntimeApi", 1)
    trace, library = started()
    kinds = [number for name, number in library.enabled if name == "cuptiActivityEnable"]
    assert cupti.KIND_RUNTIME in kinds
    assert cupti.KIND_DRIVER not in kinds
    assert set(trace.api_names) >= {(cupti.DOMAIN_RUNTIME, cbid) for cbid in FUNCTIONS[cupti.DOMAIN_RUNTIME]}
    assert trace.all_calls


def test_a_measured_pass_whose_cupti_refuses_a_function_has_no_gpu_trace(machine: type[FakeCupti]) -> None:
    machine.failing = ("cuptiActivityEnableRuntimeApi", 1)
    trace, reason = gpu.start_gpu_trace("/nowhere")
    assert trace is None
    assert reason is not None


ASKED = [
    "cudaGetDevice_v3020", "cudaSetDevice_v3020", "cudaGetLastError_v3020", "cudaPeekAtLastError_v3020",
    "cudaDeviceGetAttribute_v5000", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGet", "cuDeviceGetAttribute",
    "cuDeviceGetUuid_v2", "cudaPointerGetAttributes_v4000", "__cudaPushCallConfiguration_v9000",
]  # fmt: skip
NOT_ASKED = [
    "cudaMalloc_v3020", "cudaFree_v3020", "cudaMallocAsync_v11020", "cudaHostAlloc_v3020", "cudaFreeHost_v3020",
    "cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020", "cudaEventQuery_v3020", "cudaEventRecord_v3020",
    "cudaStreamWaitEvent_v3020", "cudaGetDeviceProperties_v12000", "cudaSetDeviceFlags_v3020", "cuLibraryLoadData",
    "cuModuleLoadData", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxSynchronize", "cuStreamSynchronize", "cuEventQuery",
    "cuLaunchKernel", "cudaLaunchKernel_v7000", "cudaStreamIsCapturing_v10000", "cudaGraphLaunch_v10000",
    "cudaGraphInstantiate_v12000", "cuInit", "cuDevicePrimaryCtxRetain", "cudaMemGetInfo_v3020",
]  # fmt: skip


def test_what_is_an_inquiry() -> None:
    assert [name for name in ASKED if not cupti.is_inquiry(name)] == []
    assert [name for name in NOT_ASKED if cupti.is_inquiry(name)] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, made: m.setenv("CUDA_INJECTION64_PATH", "/x/libToolsInjection64.so"), "CUDA_INJECTION64_PATH"),
        (lambda m, made: m.setenv("NVTX_INJECTION64_PATH", "/x/libToolsInjection64.so"), "NVTX_INJECTION64_PATH"),
        (lambda m, made: m.setattr(cupti, "driver_library", lambda: None), "libcuda.so.1"),
        (lambda m, made: m.setattr(cupti, "find_libraries", lambda _: iter([])), "nvidia-cuda-cupti"),
        (lambda m, made: m.setattr(made, "version", 999999), "layouts"),
        (lambda m, made: m.setattr(made, "failing", ("cuptiSubscribe", 39)), "subscriber"),
        (lambda m, made: m.setattr(made, "failing", ("cuptiSubscribe", 15)), "15"),
        (lambda m, made: m.setattr(native, "supported", lambda: False), "callbacks"),
    ],
)
def test_stands_back_and_says_why(
    machine: type[FakeCupti],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, type[FakeCupti]], None],
    words: str,
) -> None:
    change(monkeypatch, machine)
    trace, reason = gpu.start_gpu_trace("/nowhere")
    assert trace is None
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(("device_count_code", "taken_over"), [(3, False), (0, True)])
def test_a_canary_that_leaves_no_record_means_taken_over(
    machine: type[FakeCupti], monkeypatch: pytest.MonkeyPatch, device_count_code: int, taken_over: bool
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/x/libcupti.so.13")  # of a traced parent: no other tool
    trace, _ = started()
    cast(Any, trace.driver).cuDeviceGetCount = lambda count: device_count_code  # 3: CUDA was not initialised
    assert trace.stop() == (3, taken_over)


HANGING = """
import ctypes, os, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from perfharness import PerfRecorder
from perfharness.tracer import cupti, gpu, native, output, session as sessions
from perfharness.tracer.gpu_spool import GpuSpool
from perfharness.tracer.session import Session

libc = ctypes.CDLL(None)
started_in = os.getpid()
HANGS_IN_PARENT = "parent" in sys.argv


class Library:
    version, path = 130001, Path("libcupti.so")
    library = SimpleNamespace(cuptiActivityDisable=lambda kind: 0)

    def call(self, function, *arguments):
        if function == "cuptiActivityFlushAll" and (HANGS_IN_PARENT or os.getpid() != started_in):
            libc.pause()

    def dropped_records(self):
        return 0


NOT_INITIALIZED = 3
driver = SimpleNamespace(cuDeviceGetCount=lambda count: NOT_INITIALIZED, cuDriverGetVersion=lambda version: 0)
gpu.STALLED_S = 0.2 if HANGS_IN_PARENT else 1000.0
cupti.driver_library = lambda: driver
gpu.cuda_was_used = output.cuda_was_used = lambda: True
sessions._uses_cuda = lambda: True
output.devices.write = lambda *_: None
gpu.start_gpu_trace = lambda folder: (trace(folder), None)


def trace(folder):
    started = gpu.GpuTrace(Library(), GpuSpool(native.BufferPool(4096, 3), folder), driver)
    started.spool.start()
    return started


import perfharness.tracer.session as session_module
session_module.GPU_DEVICE_FILES = ("/",)
session = Session.start(os.environ["PERFHARNESS_OUTPUT_DIR"], output.write_trace)
session.trace_name = "trace.sqlite"
session.start_gpu()
"""


def run_hanging(folder: Path, code: str, *arguments: str) -> int:
    given = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
    done = subprocess.run(
        [sys.executable, "-c", HANGING + code, *arguments],
        env={**given, environment.OUTPUT_DIR: str(folder), environment.TRACER: "embedded"}, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode


def lost(path: Path) -> tuple[str | None, list[tuple[str, Severity]]]:
    """Why a trace has no GPU work, and the findings of it."""
    trace = open_trace(path)
    _, findings = find_untraced_work(trace, Analysis(trace).launches)
    return trace.meta.gpu_coverage_reason, [(finding.code, finding.severity) for finding in findings]


def test_what_a_forked_child_does_is_its_own_threads(tmp_path: Path) -> None:
    """Thread 41 of the parent's parent and 42 of the parent forked; 43 is a thread of the child."""
    session = Session(str(tmp_path), write_trace)
    session.pid, session.inherited_threads = 99, frozenset({41, 42})
    runtime, kernel = cupti.KIND_RUNTIME, cupti.KIND_CONCURRENT_KERNEL
    records = {
        runtime: columns_of(runtime, [{"start": 1, "end": 2, "thread": number} for number in (41, 42, 43, 99)]),
        kernel: columns_of(kernel, [{"start": 1, "end": 2}]),
    }
    found = gpu_tables.of_own_threads(records, session)
    assert found[runtime]["thread"].tolist() == [99, 99, 43, 99]
    assert found[kernel] is records[kernel]


FORKING = """
import json, os, sys, threading
from perfharness.tracer.session import Session

session = Session.start(os.environ["PERFHARNESS_OUTPUT_DIR"], lambda session: None)
forked = []

def fork():
    forked.append(threading.get_native_id())
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return not child

def in_thread():
    if fork() and fork():
        print(json.dumps([forked, sorted(session.inherited_threads), os.getpid(), session.pid]), flush=True)
        session._os_exit(0)
    sys.stdout.flush()

thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
"""


def test_a_forked_child_knows_the_threads_that_forked(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, environment.OUTPUT_DIR: str(tmp_path), environment.TRACER: "embedded"},
    )  # fmt: skip
    forked, inherited, pid, own = json.loads(done.stdout)
    assert inherited == sorted(forked)
    assert pid == own


@needs_code
def test_a_forked_child_never_waits_for_the_threads_that_cupti_had_in_its_parent(tmp_path: Path) -> None:
    """The child's GPU work is said to be missing, CUPTI gets no more buffers there, and the parent's trace is whole."""
    code = """
child = os.fork()
if not child:
    driver.cuDeviceGetCount = lambda count: 0
    recorder = PerfRecorder("app")
    with recorder.batch(0, total_items=1):
        pass
    os._exit(7)
deadline = time.monotonic() + 30
while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
    time.sleep(0.01)
if not ended[0]:
    os.kill(child, 9)
Path(session.output_dir, "child").write_text(str(child))
sys.exit(os.waitstatus_to_exitcode(ended[1]) if ended[0] else 99)
"""
    assert run_hanging(tmp_path, code) == 7
    assert open_trace(tmp_path / "trace.sqlite").meta.gpu_coverage == "traced"
    traces = complete_traces(tmp_path)
    (child,) = [path for path in traces if (tmp_path / "child").read_text() in path.name]
    assert lost(child) == (schema.CUPTI_FORKED, [("gpu-not-traced", Severity.ERROR)])


@needs_code
@pytest.mark.parametrize("end", ["sys.exit(5)", "os._exit(5)"])
def test_a_cupti_that_never_answers_neither_keeps_the_process_nor_its_exit_code(tmp_path: Path, end: str) -> None:
    """Nor does an exit function of its library that waits for the same."""
    assert run_hanging(tmp_path, f"libc.on_exit(libc.pause, None)\n{end}", "parent") == 5
    assert lost(tmp_path / "trace.sqlite") == (schema.CUPTI_STALLED, [("gpu-not-traced", Severity.ERROR)])


def columns_of(kind: int, rows: list[dict[str, int]]) -> Columns:
    fields = LAYOUTS[kind].fields
    return {name: np.asarray([row.get(name, 0) for row in rows], dtype=fields[name][0]) for name in fields}


def test_ranges_of_c_libraries(tmp_path: Path) -> None:
    """a and b nest, c is ended by thread 2, d ends while e (later) is open, m is a mark, o and p stay open, of which p
    has a domain of its own.

    a [1 .......... 6]   d [10 ... 12]
      b [2 .. 4]            e [11 ... 13]
    """
    start, end, thread = nvtx_table.FLAG_START, nvtx_table.FLAG_END, nvtx_table.OBJECT_THREAD
    names = {name: ctypes.create_string_buffer(name.encode()) for name in "abcdemop"}
    domain = ctypes.create_string_buffer(b"NCCL")
    events = [
        ("a", 1, 1, start, 1), ("b", 2, 2, start, 1), ("b", 2, 4, end, 1), ("a", 1, 6, end, 1), ("c", 3, 7, start, 1),
        ("c", 3, 8, end, 2), ("d", 4, 10, start, 1), ("e", 5, 11, start, 1), ("d", 4, 12, end, 1), ("e", 5, 13, end, 1),
        ("m", 6, 14, nvtx_table.FLAG_INSTANTANEOUS, 1), ("o", 7, 15, start, 1), ("p", 8, 16, start, 1),
    ]  # fmt: skip
    columns = columns_of(
        cupti.KIND_MARKER,
        [
            {
                "flags": flags,
                "timestamp": at,
                "id": number,
                "object_kind": thread,
                "thread": tid,
                "name": 0 if flags == end else ctypes.addressof(names[name]),
                "domain": ctypes.addressof(domain) if name == "p" else 0,
            }
            for name, number, at, flags, tid in events
        ],
    )
    data = {"id": 1, "flags": nvtx_table.FLAG_COLOR_ARGB, "color": 0xFF0000, "category": 5, "payload": -3}
    data["payload_kind"] = nvtx_table.PAYLOAD_INT64
    session = Session(str(tmp_path), write_trace)
    session.origin_ns = 0
    with TraceFile(tmp_path / "t.sqlite") as file:
        records = {cupti.KIND_MARKER: columns, cupti.KIND_MARKER_DATA: columns_of(cupti.KIND_MARKER_DATA, [data])}
        assert nvtx_table.write_markers(file, session, records) == {"NCCL p": 1}
        file.write_strings()
    push_pop, start_end = schema.NVTX_PUSH_POP_RANGE, schema.NVTX_START_END_RANGE
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection:
        found = connection.execute(
            "SELECT value, eventType, start, end, endGlobalTid & 0xFFFFFF, color, category, int64Value "
            f"FROM {schema.TABLE_NVTX} JOIN {schema.TABLE_STRINGS} ON id = textId ORDER BY start"
        ).fetchall()
    assert found == [
        ("a", push_pop, 1, 6, None, 0xFF0000, 5, -3),
        ("b", push_pop, 2, 4, None, None, None, None),
        ("c", start_end, 7, 8, 2, None, None, None),
        ("d", start_end, 10, 12, None, None, None, None),
        ("e", push_pop, 11, 13, None, None, None, None),
        ("m", schema.NVTX_MARK_EVENT, 14, None, None, None, None, None),
        ("o", push_pop, 15, None, None, None, None, None),
    ]


def test_work_whose_call_was_not_recorded_is_reported(tmp_path: Path) -> None:
    """Kernels 1 to 3 and the calls 1 and 3: 1 of 3 has none."""
    session = Session(str(tmp_path), write_trace)

    kernels = [{"start": 5, "end": 6, "correlation": number} for number in (1, 2, 3)]
    calls = [{"start": 1, "end": 2, "correlation": number, "cbid": 211} for number in (1, 3)]
    with TraceFile(tmp_path / "t.sqlite") as file:
        records = {
            cupti.KIND_CONCURRENT_KERNEL: columns_of(cupti.KIND_CONCURRENT_KERNEL, kernels),
            cupti.KIND_RUNTIME: columns_of(cupti.KIND_RUNTIME, calls),
        }
        diagnostics = gpu_tables.write(file, session, records, {(cupti.DOMAIN_RUNTIME, 211): "cudaLaunchKernel"})
    assert len(diagnostics) == 1
    assert diagnostics[0].startswith("1 of 3 ")


def test_a_driver_call_inside_a_runtime_call_is_the_runtime_call(tmp_path: Path) -> None:
    """On thread 1 the runtime call 10 holds the driver call 11, which started kernel 11 and waited; 12 is a driver call
    of its own, 13 one at the same time on thread 2. Call 20 has no end, and 21 no times.
    """
    runtime, driver = cupti.KIND_RUNTIME, cupti.KIND_DRIVER
    records = {
        runtime: columns_of(runtime, [
            {"start": 10, "end": 20, "thread": 1, "correlation": 10}, {"start": 90, "end": 0, "correlation": 20},
            {"start": 0, "end": 0, "correlation": 21}, {"start": 2, "end": 5, "thread": 1, "correlation": 9},
        ]),
        driver: columns_of(driver, [
            {"start": 12, "end": 20, "thread": 1, "correlation": 11},
            {"start": 12, "end": 18, "thread": 2, "correlation": 13},
            {"start": 22, "end": 25, "thread": 1, "correlation": 12},
            {"start": 4, "end": 6, "thread": 1, "correlation": 14},
        ]),
        cupti.KIND_CONCURRENT_KERNEL: columns_of(cupti.KIND_CONCURRENT_KERNEL, [
            {"start": 30, "end": 40, "correlation": number} for number in (11, 12, 13)
        ]),
        cupti.KIND_SYNCHRONIZATION: columns_of(cupti.KIND_SYNCHRONIZATION, [
            {"start": 14, "end": 19, "correlation": 11},
        ]),
    }  # fmt: skip
    found = gpu_tables.without_inner_calls(records)
    correlations = {kind: columns["correlation"].tolist() for kind, columns in found.items()}
    assert correlations == {
        runtime: [10, 9],
        driver: [13, 12, 14],
        cupti.KIND_CONCURRENT_KERNEL: [10, 12, 13],
        cupti.KIND_SYNCHRONIZATION: [10],
    }
    assert len(records[driver]["start"]) == 4


def raw(kind: int, columns: Columns, version: int) -> bytes:
    """Records as CUPTI writes them."""
    fields = LAYOUTS[kind].fields
    layout = np.dtype({
        "names": list(fields), "formats": [form for form, _ in fields.values()],
        "offsets": [offset for _, offset in fields.values()], "itemsize": LAYOUTS[kind].length(version),
    })  # fmt: skip
    made = np.zeros(len(columns["start"]), dtype=layout)
    for name, values in columns.items():
        made[name] = values
    made.view(np.uint8).reshape(len(made), -1)[:, :4] = np.frombuffer(np.uint32(kind).tobytes(), dtype=np.uint8)
    return made.tobytes()


def traced(folder: Path, records: dict[int, Columns], names: dict[tuple[int, int], str], *, dropped: int = 0) -> Path:
    """The trace of a process whose CUPTI returned these records, in the explaining pass."""
    version = 130001
    kept = [ctypes.create_string_buffer(raw(kind, columns, version)) for kind, columns in records.items()]
    buffers = [(ctypes.addressof(data), len(data) - 1) for data in kept]
    spool = SimpleNamespace(buffers=lambda: iter(buffers), remove=lambda: None)
    library = SimpleNamespace(cuptiActivityGetNextRecord=lambda *_: 12)
    session = Session(str(folder), write_trace)
    session.origin_ns, session.end_ns = 0, 10**9
    session.gpu = cast(Any, SimpleNamespace(
        cupti=SimpleNamespace(version=version, path=Path("libcupti.so"), library=library), spool=spool,
        stop=lambda: (dropped, False), api_names=names, all_calls=True,
    ))  # fmt: skip
    return write_trace(session)


RUNTIME_NAMES = {
    (cupti.DOMAIN_RUNTIME, 211): "cudaLaunchKernel_v7000",
    (cupti.DOMAIN_RUNTIME, 131): "cudaStreamSynchronize_v3020",
    (cupti.DOMAIN_RUNTIME, 22): "cudaFree_v3020",
    (cupti.DOMAIN_RUNTIME, 17): "cudaGetDevice_v3020",
}


@pytest.mark.parametrize(("dropped", "complete"), [(0, True), (3, False)])
def test_the_trace_of_an_explaining_pass_says_that_it_has_all_calls(
    tmp_path: Path, dropped: int, complete: bool
) -> None:
    kernel = {"start": 300, "end": 900, "correlation": 1, "device": 2, "context": 5, "stream": 7}
    records = {
        cupti.KIND_RUNTIME: columns_of(cupti.KIND_RUNTIME, [
            {"start": 100, "end": 200, "thread": 1, "correlation": 1, "cbid": 211},
            {"start": 210, "end": 950, "thread": 1, "correlation": 2, "cbid": 131},
            {"start": 960, "end": 970, "thread": 1, "correlation": 3, "cbid": 22, "return_value": 700},
            {"start": 980, "end": 981, "thread": 1, "correlation": 4, "cbid": 17},
        ]),
        cupti.KIND_CONCURRENT_KERNEL: columns_of(cupti.KIND_CONCURRENT_KERNEL, [kernel]),
        cupti.KIND_SYNCHRONIZATION: columns_of(cupti.KIND_SYNCHRONIZATION, [
            {"start": 220, "end": 940, "correlation": 2, "context": 5, "stream": 7, "type": 3, "event": 2**32 - 1},
            {"start": 961, "end": 965, "correlation": 3, "context": 6, "stream": 2**32 - 1, "type": 4},
        ]),
    }  # fmt: skip
    trace = open_trace(traced(tmp_path, records, RUNTIME_NAMES, dropped=dropped))
    assert trace.meta.has_all_calls is complete
    names = [trace.names[code] for code in trace.api.name.tolist()]
    assert sorted(names) == ["cudaFree_v3020", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020"]
    assert trace.api.return_value.tolist() == [0, 0, 700]
    waits = trace.synchronizations
    columns = (waits.correlation, waits.kind, waits.device, waits.stream)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [(2, 3, 2, 7), (3, 4, -1, -1)]
    workload = build_workload(Analysis(trace), ALONE)
    assert workload.api_is_complete is complete
