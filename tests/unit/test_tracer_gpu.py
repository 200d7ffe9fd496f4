"""Starting and stopping CUPTI, on a CUPTI that only writes down what it is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from perfharness.model import nsys_schema as schema
from perfharness.tracer import cupti, gpu, markers, native
from perfharness.tracer.cupti import CuptiError
from perfharness.tracer.layouts import LAYOUTS
from perfharness.tracer.records import Columns
from perfharness.tracer.sqlite_file import TraceFile

FUNCTIONS = {
    cupti.DOMAIN_RUNTIME: {17: "cudaGetDevice_v3020", 211: "cudaLaunchKernel_v7000", 41: "cudaMemcpyAsync_v3020"},
    cupti.DOMAIN_DRIVER: {3: "cuDriverGetVersion", 307: "cuLaunchKernel", 9: "cuCtxGetCurrent"},
}


class FakeCupti:
    """Answers success to everything, unless told to fail."""

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

    def set_flag(self, attribute: int, value: int) -> None:
        self.calls.append("cuptiActivitySetAttribute")

    def enable(self, kind: int) -> None:
        self.call("cuptiActivityEnable", ctypes.c_int(kind))

    def functions(self, domain: int) -> dict[int, str]:
        return FUNCTIONS[domain]

    def dropped_records(self) -> int:
        return 3


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> type[FakeCupti]:
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
    monkeypatch.setattr(gpu, "_listen_to_nvtx", lambda library: None)
    return Made


def started() -> tuple[gpu.GpuTrace, FakeCupti]:
    trace, reason = gpu.start_gpu_trace()
    assert trace is not None, reason
    return trace, cast(FakeCupti, trace.cupti)


def test_only_what_starts_gpu_work_is_asked_for(machine: type[FakeCupti]) -> None:
    trace, library = started()
    assert [number for name, number in library.enabled if name == "cuptiActivityEnable"] == list(gpu.OPERATION_KINDS)
    functions = {(name, number) for name, number in library.enabled if name != "cuptiActivityEnable"}
    assert functions == {
        ("cuptiActivityEnableRuntimeApi", 211),
        ("cuptiActivityEnableRuntimeApi", 41),
        ("cuptiActivityEnableDriverApi", 307),
        ("cuptiActivityEnableDriverApi", 3),
    }
    assert trace.api_names[cupti.DOMAIN_RUNTIME, 211] == "cudaLaunchKernel_v7000"


def test_the_place_the_clock_and_the_buffers_come_before_any_record(machine: type[FakeCupti]) -> None:
    _, library = started()
    first = library.calls.index("cuptiActivityEnable")
    for name in ("cuptiSubscribe", "cuptiSetThreadIdType", "cuptiActivityRegisterTimestampCallback"):
        assert library.calls.index(name) < first
    assert library.calls.index("cuptiActivityRegisterCallbacks") < first


def test_a_cupti_that_cannot_choose_functions_records_them_all(machine: type[FakeCupti]) -> None:
    machine.selective = False
    _, library = started()
    kinds = [number for _, number in library.enabled]
    assert {cupti.KIND_RUNTIME, cupti.KIND_DRIVER} <= set(kinds)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, made: m.setenv("CUDA_INJECTION64_PATH", "/x/libToolsInjection64.so"), "CUDA_INJECTION64_PATH"),
        (lambda m, made: m.setenv("NVTX_INJECTION64_PATH", "/x/libToolsInjection64.so"), "NVTX_INJECTION64_PATH"),
        (lambda m, made: m.setattr(cupti, "driver_library", lambda: None), "libcuda.so.1"),
        (lambda m, made: m.setattr(cupti, "find_libraries", lambda _: iter([])), "pip install 'nvidia-cuda-cupti==13"),
        (lambda m, made: m.setattr(made, "version", 999999), "layouts"),
        (lambda m, made: m.setattr(made, "failing", ("cuptiSubscribe", 39)), "another CUPTI subscriber"),
        (lambda m, made: m.setattr(made, "failing", ("cuptiSubscribe", 15)), "cuptiSubscribe failed with 15"),
        (lambda m, made: m.setattr(native, "supported", lambda: False), "no CUPTI callbacks"),
    ],
)
def test_stands_back_and_says_why(
    machine: type[FakeCupti],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, type[FakeCupti]], None],
    words: str,
) -> None:
    change(monkeypatch, machine)
    trace, reason = gpu.start_gpu_trace()
    assert trace is None
    assert reason is not None
    assert words in reason


def test_nvtx_sent_to_cupti_by_a_traced_parent_is_no_other_tool(
    machine: type[FakeCupti], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/x/libcupti.so.13")
    started()


def test_dropped_records_are_asked_for(machine: type[FakeCupti]) -> None:
    trace, library = started()
    raw = trace.stop()
    assert raw.dropped == 3
    assert "cuptiActivityFlushAll" in library.calls
    assert not raw.taken_over


def test_a_canary_that_leaves_no_record_means_taken_over(machine: type[FakeCupti]) -> None:
    trace, _ = started()
    cast(Any, trace.driver).cuDeviceGetCount = lambda count: 0
    assert trace.stop().taken_over


def marker_columns(rows: list[dict[str, int]]) -> Columns:
    layout = LAYOUTS[cupti.KIND_MARKER].fields
    return {
        name: np.asarray([row.get(name, 0) for row in rows], dtype=type_name) for name, (type_name, _) in layout.items()
    }


def test_ranges_of_c_libraries(tmp_path: Path) -> None:
    """a and b nest, c is ended by thread 2, d ends while e (later) is open, m is a mark, o stays open.

    a [1 .......... 6]   d [10 ... 12]
      b [2 .. 4]            e [11 ... 13]
    """
    start, end, thread = markers.FLAG_START, markers.FLAG_END, markers.OBJECT_THREAD
    names = {name: ctypes.create_string_buffer(name.encode()) for name in "abcdemo"}
    events = [
        ("a", 1, 1, start, 1), ("b", 2, 2, start, 1), ("b", 2, 4, end, 1), ("a", 1, 6, end, 1), ("c", 3, 7, start, 1),
        ("c", 3, 8, end, 2), ("d", 4, 10, start, 1), ("e", 5, 11, start, 1), ("d", 4, 12, end, 1), ("e", 5, 13, end, 1),
        ("m", 6, 14, markers.FLAG_INSTANTANEOUS, 1), ("o", 7, 15, start, 1),
    ]  # fmt: skip
    columns = marker_columns(
        [
            {
                "flags": flags,
                "timestamp": at,
                "id": number,
                "object_kind": thread,
                "thread": tid,
                "name": 0 if flags == end else ctypes.addressof(names[name]),
            }
            for name, number, at, flags, tid in events
        ]
    )
    with TraceFile(tmp_path / "t.sqlite") as file:
        table = markers.table(file, {cupti.KIND_MARKER: columns}, lambda name: 0)
        text = {file.string_id(name): name for name in names}
    push_pop, start_end = schema.NVTX_PUSH_POP_RANGE, schema.NVTX_START_END_RANGE
    found = {
        text[table["text"][row]]: (int(table["event_type"][row]), int(table["start"][row]), int(table["end"][row]))
        for row in range(len(table["start"]))
    }
    assert found == {
        "a": (push_pop, 1, 6),
        "b": (push_pop, 2, 4),
        "c": (start_end, 7, 8),
        "d": (start_end, 10, 12),
        "e": (push_pop, 11, 13),
        "m": (schema.NVTX_MARK_EVENT, 14, -1),
        "o": (push_pop, 15, -1),
    }
    assert table["end_thread"][list(found).index("c")] == 2
