"""CUPTI's buffers, built byte by byte by the layouts of a version and walked by a library that is made up."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from perfharness.tracer import callbacks, cupti, records
from perfharness.tracer.cupti import Cupti
from perfharness.tracer.layouts import LAYOUTS, is_known, record_lengths
from perfharness.tracer.records import Columns, LayoutError, check_lengths

VERSIONS = [18, 21, 26, 28, 130001, 130101, 130301, 130401, 130500]
FOREIGN_KIND = 99
FOREIGN_LENGTH = 48


def fake_cupti(version: int, lengths: dict[int, int] | None = None) -> Cupti:
    """Finds the next record as the real one does: by its own idea of the lengths."""
    known = {**record_lengths(version), FOREIGN_KIND: FOREIGN_LENGTH, **(lengths or {})}

    def following(buffer: Any, valid: Any, record: Any) -> int:
        pointer = cast(ctypes.c_void_p, record._obj)
        if pointer.value is None:
            at = buffer.value
        else:
            at = pointer.value + known[ctypes.c_uint32.from_address(pointer.value).value]
        if at >= buffer.value + valid.value:
            return 12
        pointer.value = at
        return 0

    library = SimpleNamespace(cuptiActivityGetNextRecord=following)
    return cast(Cupti, SimpleNamespace(version=version, library=library, path=Path("libcupti.so")))


def decode(library: Cupti, buffers: list[tuple[int, int]]) -> dict[int, Columns]:
    check_lengths(library, buffers)
    return records.decode(library, buffers)


def record(version: int, kind: int, **values: int) -> bytes:
    length = FOREIGN_LENGTH if kind == FOREIGN_KIND else record_lengths(version)[kind]
    raw = bytearray(length)
    raw[:4] = kind.to_bytes(4, "little")
    for name, value in values.items():
        type_name, offset = LAYOUTS[kind].fields[name]
        field = np.asarray([value], dtype=type_name).tobytes()
        raw[offset : offset + len(field)] = field
    return bytes(raw)


def buffer_of(*records: bytes) -> tuple[Any, tuple[int, int]]:
    data = b"".join(records)
    memory = ctypes.create_string_buffer(data, len(data))
    return memory, (ctypes.addressof(memory), len(data))


@pytest.mark.parametrize("version", VERSIONS)
def test_kinds_interleave_and_every_field_comes_back(version: int) -> None:
    kernel, call, copy = cupti.KIND_CONCURRENT_KERNEL, cupti.KIND_RUNTIME, cupti.KIND_MEMCPY
    kept, buffer = buffer_of(
        record(version, call, cbid=211, start=10, end=20, thread=77, correlationId=5),
        record(
            version, kernel, start=15, end=40, correlationId=5, gridX=8, blockZ=2, name=99, localMemoryTotal=1 << 40
        ),
        record(version, copy, start=50, end=60, correlationId=6, bytes=1 << 33, copyKind=1, dstKind=3),
        record(version, kernel, start=70, end=80, correlationId=7, deviceId=1, streamId=13),
    )
    found = decode(fake_cupti(version), [buffer])
    assert found[kernel]["start"].tolist() == [15, 70]
    assert found[kernel]["correlationId"].tolist() == [5, 7]
    assert found[kernel]["gridX"].tolist() == [8, 0]
    assert found[kernel]["blockZ"].tolist() == [2, 0]
    assert found[kernel]["localMemoryTotal"].tolist() == [1 << 40, 0]
    assert found[kernel]["streamId"].tolist() == [0, 13]
    assert found[call]["thread"].tolist() == [77]
    assert found[copy]["bytes"].tolist() == [1 << 33]
    assert found[copy]["dstKind"].tolist() == [3]
    del kept


def test_columns_go_on_from_buffer_to_buffer() -> None:
    assert decode(fake_cupti(130001), []) == {}
    first, one = buffer_of(record(130001, cupti.KIND_MEMSET, start=1, end=2, value=255))
    second, two = buffer_of(record(130001, cupti.KIND_MEMSET, start=3, end=4, memKind=2))
    found = decode(fake_cupti(130001), [one, (0, 0), two])[cupti.KIND_MEMSET]
    assert found["start"].tolist() == [1, 3]
    assert found["value"].tolist() == [255, 0]
    assert found["memKind"].tolist() == [0, 2]
    del first, second


def test_records_of_a_kind_that_nobody_asked_for_are_stepped_over() -> None:
    kept, buffer = buffer_of(
        record(130001, cupti.KIND_RUNTIME, correlationId=1),
        record(130001, FOREIGN_KIND),
        record(130001, cupti.KIND_RUNTIME, correlationId=2),
    )
    found = decode(fake_cupti(130001), [buffer])
    assert set(found) == {cupti.KIND_RUNTIME}
    assert found[cupti.KIND_RUNTIME]["correlationId"].tolist() == [1, 2]
    del kept


def test_lengths_other_than_known_are_not_decoded() -> None:
    kept, buffer = buffer_of(*[record(130001, cupti.KIND_MEMSET, start=1)] * 3)
    with pytest.raises(LayoutError, match="not 88"):
        decode(fake_cupti(130001, {cupti.KIND_MEMSET: 44}), [buffer])
    del kept


def test_versions_whose_layouts_are_known() -> None:
    versions = [17, 18, 28, 29, 130000, 130500, 130600, 140000]
    assert [version for version in versions if is_known(version)] == [18, 28, 130000, 130500]


KINDS_OF_FUNCTION = {
    "starts work": """
        cudaLaunchKernel_v7000 cudaLaunchKernelExC_v11060 cuLaunchKernelEx cuLaunchCooperativeKernel cuMemsetD32Async
        cudaGraphLaunch_ptsz_v10000 cudaMemcpyAsync_v3020 cudaMemPrefetchAsync_v12020 cuLaunchKernel""",
    "inquiry": """
        cudaGetDevice_v3020 cudaSetDevice_v3020 cudaGetLastError_v3020 cudaPeekAtLastError_v3020 cuCtxGetCurrent
        cudaDeviceGetAttribute_v5000 cuCtxSetCurrent cuDeviceGet cuDeviceGetAttribute cuDeviceGetUuid_v2
        cudaPointerGetAttributes_v4000 __cudaPushCallConfiguration_v9000""",
    "neither": """
        cudaLaunchHostFunc_v10000 cudaGraphMemcpyNodeSetParams_v10000 cudaGraphAddMemsetNode_v10000 cudaMalloc_v3020
        cudaStreamIsCapturing_v10000 cudaEventRecord_v3020 cudaFree_v3020 cudaMallocAsync_v11020 cudaHostAlloc_v3020
        cudaStreamSynchronize_v3020 cudaDeviceSynchronize_v3020 cudaEventQuery_v3020 cudaStreamWaitEvent_v3020
        cudaGetDeviceProperties_v12000 cudaSetDeviceFlags_v3020 cuLibraryLoadData cuModuleLoadData cuMemAlloc_v2
        cuCtxSynchronize cuInit cuDevicePrimaryCtxRetain cudaMemGetInfo_v3020 cudaGraphInstantiate_v12000""",
}


@pytest.mark.parametrize("kind", KINDS_OF_FUNCTION)
def test_kinds_of_functions(kind: str) -> None:
    names = KINDS_OF_FUNCTION[kind].split()
    assert [name for name in names if cupti.starts_gpu_work(name) != (kind == "starts work")] == []
    assert [name for name in names if cupti.is_inquiry(name) != (kind == "inquiry")] == []


def test_libraries_are_found_where_wheels_and_toolkits_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, home = tmp_path / "site", tmp_path / "cuda"
    expected = [
        site / "nvidia" / "cu99" / "lib" / "libcupti.so.99",
        site / "nvidia" / "cuda_cupti" / "lib" / "libcupti.so.99",
        home / "extras" / "CUPTI" / "lib64" / "libcupti.so.99",
    ]
    for path in expected:
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr("sys.path", [str(site)])
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert list(cupti.find_libraries(99)) == expected
    assert list(cupti.find_libraries(98)) == []


Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
Clock = ctypes.CFUNCTYPE(ctypes.c_uint64)


def request(pool: callbacks.BufferPool) -> tuple[int | None, int, int]:
    buffer, size, max_records = ctypes.c_void_p(1), ctypes.c_size_t(2), ctypes.c_size_t(3)
    Request(pool.request_address)(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(max_records))
    return buffer.value, size.value, max_records.value


@pytest.mark.skipif(not callbacks.supported(), reason="no machine code for this processor")
def test_the_machine_code_hands_out_each_buffer_once_and_counts_all() -> None:
    """Called as by CUPTI, from eight threads; more returns than buffers write nowhere."""
    pool = callbacks.BufferPool(4096, 4000)
    found: list[tuple[int | None, int, int]] = []
    threads = [threading.Thread(target=lambda: found.extend(request(pool) for _ in range(501))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one for one in found if one[0]) == [(pool.base + number * 4096, 4096, 0) for number in range(4000)]
    assert [one for one in found if not one[0]] == [(None, 0, 0)] * 8
    assert pool.requested == 4008
    small = callbacks.BufferPool(4096, 1)
    for valid in (0, 16, 24):
        Complete(small.complete_address)(0x1234, 7, small.base, 4096, valid)
    assert small.completed() == [(small.base, 0)]
    clock = Clock(pool.clock_address)
    for _ in range(100):
        before, now, after = time.perf_counter_ns(), clock(), time.perf_counter_ns()
        assert before <= now <= after
