"""The machine code, called as CUPTI would call it."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from perfharness.tracer import native

pytestmark = pytest.mark.skipif(not native.supported(), reason="no machine code for this processor")

BUFFER_BYTES = 4096
Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
Clock = ctypes.CFUNCTYPE(ctypes.c_uint64)


def request(pool: native.BufferPool) -> tuple[int | None, int, int]:
    buffer, size, max_records = ctypes.c_void_p(1), ctypes.c_size_t(2), ctypes.c_size_t(3)
    Request(pool.request_address)(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(max_records))
    return buffer.value, size.value, max_records.value


def complete(pool: native.BufferPool, address: int, valid: int) -> None:
    Complete(pool.complete_address)(0x1234, 7, address, BUFFER_BYTES, valid)


def test_buffers_are_handed_out_one_after_another_and_then_no_more() -> None:
    pool = native.BufferPool(BUFFER_BYTES, 3)
    handed = [request(pool) for _ in range(5)]
    assert handed[:3] == [(pool.base + number * BUFFER_BYTES, BUFFER_BYTES, 0) for number in range(3)]
    assert handed[3:] == [(None, 0, 0)] * 2
    assert pool.requested == 5


def test_more_returns_than_buffers_write_nowhere() -> None:
    pool = native.BufferPool(BUFFER_BYTES, 1)
    for valid in (0, 16, 24):
        complete(pool, pool.base, valid)
    assert pool.completed() == [(pool.base, 0)]


def test_threads_never_get_the_same_buffer() -> None:
    pool = native.BufferPool(BUFFER_BYTES, 4000)
    found: list[int | None] = []

    def take() -> None:
        found.extend([request(pool)[0] for _ in range(500)])

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 4000
    assert None not in found


def test_the_clock_is_that_of_perf_counter() -> None:
    pool = native.BufferPool(BUFFER_BYTES, 1)
    clock = Clock(pool.clock_address)
    for _ in range(100):
        before = time.perf_counter_ns()
        now = clock()
        assert before <= now <= time.perf_counter_ns()
