"""Ranges, marks, GPU operations, GPUs and the interpreter lock of a trace, as columns."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.host_samples import HostEventKind
from perfharness.model.trace import (
    CopyKind,
    GpuDevice,
    GpuOperationKind,
    MemoryKind,
    OperationDetails,
    Trace,
    tid_of,
)
from perfharness.trace import open_trace
from tests.support.trace_builder import H200, TraceBuilder
from tests.unit.trace.conftest import Read

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
HELD, WAITED = HostEventKind.GIL_HELD, HostEventKind.GIL_WAITED


def test_open_ranges_and_ranges_that_end_on_another_thread(read: Read) -> None:
    builder = TraceBuilder()
    builder.range("open", 5, None)
    builder.range("same thread", 10, 20, start_end=True, end_tid=100)
    builder.range("other thread", 10, 30, start_end=True, end_tid=101)
    builder.mark("mark", 40, payload=3)
    trace = read(builder)
    assert trace.ranges.end_ns.tolist() == [40, 20, 30]
    assert trace.ranges.is_open.tolist() == [True, False, False]
    assert trace.ranges.crosses_threads.tolist() == [False, False, True]
    assert (trace.marks.time_ns.tolist(), trace.marks.payload.tolist()) == ([40], [3])


def test_each_kind_of_operation_has_its_details(read: Read) -> None:
    builder = TraceBuilder()
    builder.kernel((0, 5), (10, 20), name="gemm", grid=4, block=128, registers=32, shared_bytes=128)
    builder.operation(30, 40, 2, table=schema.TABLE_MEMCPY, bytes=4096, copyKind=1, srcKind=0, dstKind=2)
    builder.operation(50, 60, 3, table=schema.TABLE_MEMSET, bytes=512, memKind=2)
    builder.operation(70, 80, 4, table=schema.TABLE_GRAPH, graphExecId=9)
    trace = read(builder)
    details = {
        name: getattr(trace.details, name).tolist()
        for name in ("block", "registers", "shared_bytes", "copy_kind", "bytes", "source", "target", "graph_exec")
    }
    assert trace.operations.kind.tolist() == list(GpuOperationKind)
    assert [trace.names[code] if code >= 0 else None for code in trace.details.name] == ["gemm", None, None, None]
    assert details == {
        "block": [[128, 1, 1], *[[-1, -1, -1]] * 3],
        "registers": [32, -1, -1, -1],
        "shared_bytes": [128, -1, -1, -1],
        "copy_kind": [-1, CopyKind.HOST_TO_DEVICE, -1, -1],
        "bytes": [-1, 4096, 512, -1],
        "source": [-1, MemoryKind.PAGEABLE, -1, -1],
        "target": [-1, MemoryKind.DEVICE, MemoryKind.DEVICE, -1],
        "graph_exec": [-1, -1, -1, 9],
    }
    without = read(builder, with_details=False)
    assert np.array_equal(without.operations.start_ns, trace.operations.start_ns)
    assert all((getattr(without.details, column.name) == -1).all() for column in fields(OperationDetails))


@pytest.mark.parametrize("name", ["graphs_node", "long", "old_partial"])
def test_real_kernels_agree_with_sqlite(name: str) -> None:
    path = GOLDEN / f"{name}.sqlite"
    trace = open_trace(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT start, correlationId, value, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread "
            f"FROM {schema.TABLE_KERNEL} JOIN StringIds ON id = shortName"
        ).fetchall()
    operations, found = trace.operations, trace.details
    ours = [
        (
            int(operations.start_ns[at]),
            int(operations.correlation[at]),
            trace.names[found.name[at]],
            *found.grid[at].tolist(),
            *found.block[at].tolist(),
            int(found.registers[at]),
        )
        for at in np.flatnonzero(operations.kind == GpuOperationKind.KERNEL)
    ]
    assert sorted(ours) == sorted(rows)


def test_a_process_has_its_own_numbers_of_gpus(read: Read) -> None:
    builder = TraceBuilder(gpu=False)
    for gpu in range(3):
        builder.row("TARGET_INFO_GPU", **({"id": gpu} | H200 | {"uuid": f"GPU-u-{gpu}"}))
    builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=2, cudaId=0, pid=100)  # CUDA_VISIBLE_DEVICES=2,1
    builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=1, pid=100)
    builder.row("TARGET_INFO_CUDA_DEVICE", gpuId=7, cudaId=2, pid=100)  # a GPU that is not described
    found = read(builder).meta.devices
    assert [(device.pid, device.number, device.uuid) for device in found] == [(100, 0, "u-2"), (100, 1, "u-1")]
    assert found[0].memory_bytes_per_s == 4_814_304_000_000
    assert (found[0].sm_count, found[0].compute_capability, found[0].max_warps_per_sm) == (132, (9, 0), 64)


def test_unknown_facts_of_gpus(read: Read) -> None:
    builder = TraceBuilder(gpu=False)
    assert read(builder).meta.devices == ()
    builder.row("TARGET_INFO_GPU", id=1, name="a GPU", smCount=0, clockRate=None)
    assert read(builder).meta.devices == (GpuDevice(pid=None, number=1, name="a GPU"),)


def lock_rows(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Start, end, thread and kind of what is known of the interpreter lock."""
    events = trace.lock_events
    assert events is not None
    columns = (events.start_ns, events.end_ns, tid_of(events.thread), events.kind)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_the_interpreter_lock_is_evidence_and_no_range(read: Read) -> None:
    builder = TraceBuilder()
    builder.range("stage", 0, 100)
    builder.range("Waiting for GIL", 40, 60, tid=101, domain="GIL Trace")
    builder.range("Holding GIL", 10, 60, domain="GIL Trace")
    builder.range("Holding GIL", 90, None, domain="GIL Trace")
    builder.range("another", 20, 30, domain="GIL Trace")
    builder.range("Holding GIL", 0, 5, domain="mine")
    builder.range("Holding GIL", 6, 9)
    trace = read(builder)
    assert [trace.names[code] for code in trace.ranges.name] == ["stage", "another", "Holding GIL", "Holding GIL"]
    assert lock_rows(trace) == [(10, 60, 100, HELD), (40, 60, 101, WAITED), (90, 100, 100, HELD)]

    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")  # the embedded tracer has none
    trace = read(builder)
    assert (len(trace.ranges), trace.lock_events) == (7, None)


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("toy", ("toy", None, 0)),
        ("toy/a/b", ("toy", "a/b", 0)),
        ("toy#2", ("toy", None, 2)),
        ("toy/sub/io#12", ("toy/sub", "io", 12)),
        ("other", None),
        ("toys", None),
    ],
)
def test_categories_are_read_as_they_are_written(category: str, expected: tuple[str, str | None, int] | None) -> None:
    assert conventions.parse_category(category, frozenset({"toy", "toy/sub"})) == expected
    assert expected is None or conventions.category_name(*expected) == category
