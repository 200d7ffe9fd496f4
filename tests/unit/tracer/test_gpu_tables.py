"""CUPTI's records into the tables of a trace."""

from __future__ import annotations

import ctypes
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.tracer import cupti, gpu_tables, nvtx_events
from perfharness.tracer.layouts import LAYOUTS
from perfharness.tracer.records import Columns
from perfharness.tracer.session import Session
from perfharness.tracer.trace_file import TraceFile

RUNTIME, DRIVER, KERNEL = cupti.KIND_RUNTIME, cupti.KIND_DRIVER, cupti.KIND_CONCURRENT_KERNEL
SYNCHRONIZATION = cupti.KIND_SYNCHRONIZATION


def columns_of(kind: int, rows: list[dict[str, int]]) -> Columns:
    fields = LAYOUTS[kind].fields
    return {name: np.asarray([row.get(name, 0) for row in rows], dtype=fields[name][0]) for name in fields}


def session_in(folder: Path) -> Session:
    session = Session(str(folder))
    session.pid, session.origin_ns, session.end_ns = 99, 0, 10**9
    return session


def test_the_first_thread_of_a_forked_child_has_the_child_s_id(tmp_path: Path) -> None:
    """Thread 41 of the parent's parent and 42 of the parent forked; 43 is a thread of the child."""
    session = session_in(tmp_path)
    session.inherited_threads = frozenset({41, 42})
    records = {
        RUNTIME: columns_of(RUNTIME, [{"start": 1, "end": 2, "thread": number} for number in (41, 42, 43, 99)]),
        KERNEL: columns_of(KERNEL, [{"start": 1, "end": 2}]),
    }
    found = gpu_tables.of_own_threads(records, session)
    assert found[RUNTIME]["thread"].tolist() == [99, 99, 43, 99]
    assert found[KERNEL] is records[KERNEL]


def test_ranges_of_c_libraries(tmp_path: Path) -> None:
    """a and b nest, c is ended by thread 2, d ends while e (later) is open, m is a mark, o and p stay open, of which p
    has a domain of its own.

    a [1 .......... 6]   d [10 ... 12]
      b [2 .. 4]            e [11 ... 13]
    """
    start, end, mark = nvtx_events.FLAG_START, nvtx_events.FLAG_END, nvtx_events.FLAG_INSTANTANEOUS
    names = {name: ctypes.create_string_buffer(name.encode()) for name in "abcdemop"}
    domain = ctypes.create_string_buffer(b"NCCL")
    order = ["a1", "b2", "b4", "a6", "c7", "c8", "d10", "e11", "d12", "e13", "m14", "o15", "p16"]
    markers = [
        {
            "flags": mark if word[0] == "m" else end if place > [one[0] for one in order].index(word[0]) else start,
            "timestamp": int(word[1:]),
            "id": 1 + list(names).index(word[0]),
            "object_kind": nvtx_events.OBJECT_THREAD,
            "thread": 2 if word == "c8" else 1,
            "name": ctypes.addressof(names[word[0]]),
            "domain": ctypes.addressof(domain) if word[0] == "p" else 0,
        }
        for place, word in enumerate(order)
    ]
    data = {"id": 1, "flags": nvtx_events.FLAG_COLOR_ARGB, "color": 0xFF0000, "category": 5, "payload": -3}
    data["payload_kind"] = nvtx_events.PAYLOAD_INT64
    records = {
        cupti.KIND_MARKER: columns_of(cupti.KIND_MARKER, markers),
        cupti.KIND_MARKER_DATA: columns_of(cupti.KIND_MARKER_DATA, [data]),
    }
    with TraceFile(tmp_path / "t.sqlite") as file:
        assert nvtx_events.write_markers(file, session_in(tmp_path), records) == {"NCCL p": 1}
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


def test_calls_and_waits(tmp_path: Path) -> None:
    """On thread 1 the runtime call 10 holds the driver call 11, which started kernel 11 and waited; 12 is a driver call
    of its own, 13 one at the same time on thread 2. Call 20 has no end, 21 no times, and 9 is an inquiry. Kernel 30 has
    no call, and kernel 12 no times.
    """
    launch, wait, inquiry = 211, 131, 17
    records = {
        RUNTIME: columns_of(
            RUNTIME,
            [
                {"start": 10, "end": 20, "thread": 1, "correlationId": 10, "cbid": wait, "returnValue": 700},
                {"start": 90, "end": 0, "correlationId": 20, "cbid": wait},
                {"start": 0, "end": 0, "correlationId": 21, "cbid": wait},
                {"start": 2, "end": 5, "thread": 1, "correlationId": 9, "cbid": inquiry},
            ],
        ),
        DRIVER: columns_of(
            DRIVER,
            [
                {"start": 12, "end": 20, "thread": 1, "correlationId": 11, "cbid": launch},
                {"start": 12, "end": 18, "thread": 2, "correlationId": 13, "cbid": launch},
                {"start": 22, "end": 25, "thread": 1, "correlationId": 12, "cbid": launch},
                {"start": 4, "end": 6, "thread": 1, "correlationId": 14, "cbid": 3},
            ],
        ),
        KERNEL: columns_of(
            KERNEL,
            [
                {"start": 30, "end": 40, "correlationId": 11, "deviceId": 2, "contextId": 5},
                {"start": 0, "end": 0, "correlationId": 12},
                {"start": 31, "end": 41, "correlationId": 13},
                {"start": 32, "end": 42, "correlationId": 30},
            ],
        ),
        SYNCHRONIZATION: columns_of(
            SYNCHRONIZATION,
            [
                {"start": 14, "end": 19, "correlationId": 11, "contextId": 5, "streamId": 7, "syncType": 3},
                {"start": 15, "end": 16, "correlationId": 12, "contextId": 6, "streamId": 8, "syncType": 4},
            ],
        ),
    }
    names = {
        (cupti.DOMAIN_RUNTIME, wait): "cudaStreamSynchronize_v3020",
        (cupti.DOMAIN_RUNTIME, inquiry): "cudaGetDevice_v3020",
        (cupti.DOMAIN_DRIVER, launch): "cuLaunchKernel",
        (cupti.DOMAIN_DRIVER, 3): "cuDriverGetVersion",
    }
    with TraceFile(tmp_path / "t.sqlite") as file:
        untimed, without_call = gpu_tables.write(file, session_in(tmp_path), records, names)
        file.write_strings()
    assert untimed.startswith("CUPTI gave no times for 1 ")
    assert without_call.startswith("1 of 3 ")
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection:
        calls = connection.execute(
            f"SELECT correlationId, value, start, globalTid & 0xFFFFFF, returnValue FROM {schema.TABLE_API} "
            f"JOIN {schema.TABLE_STRINGS} ON id = nameId ORDER BY 1"
        ).fetchall()
        kernels = connection.execute(f"SELECT correlationId FROM {schema.TABLE_KERNEL} ORDER BY 1").fetchall()
        waits = connection.execute(
            f"SELECT correlationId, syncType, deviceId, streamId FROM {schema.TABLE_SYNCHRONIZATION} ORDER BY 1"
        ).fetchall()
    assert calls == [
        (10, "cudaStreamSynchronize_v3020", 10, 1, 700),
        (12, "cuLaunchKernel", 22, 1, 0),
        (13, "cuLaunchKernel", 12, 2, 0),
    ]
    assert kernels == [(10,), (13,), (30,)]
    assert waits == [(10, 3, 2, 7), (12, 4, None, 8)]
