"""Where CUPTI is found, and its callbacks in machine code, called as by CUPTI."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest

from perfharness.tracer import callbacks, cupti


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
