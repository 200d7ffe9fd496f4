"""Details of GPU operations, on traces made by hand and on real ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import (
    CopyKind,
    GpuOperationKind,
    GpuOperations,
    MemoryKind,
    OperationDetails,
    SynchronizationKind,
)
from perfharness.trace import open_trace
from perfharness.trace import source as source_module
from tests.support.trace_builder import TraceBuilder

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


def test_every_operation_has_what_its_kind_has(tmp_path: Path) -> None:
    builder = TraceBuilder()
    pid = schema.global_tid(100, 0)
    common = {"globalPid": pid, "deviceId": 0, "streamId": 7}
    builder.row(
        schema.TABLE_KERNEL, **common, start=10, end=20, correlationId=1, shortName=builder.string("gemm"),
        demangledName=builder.string("void gemm<float>(int)"), gridX=4, gridY=2, gridZ=1,
        blockX=128, blockY=1, blockZ=1, registersPerThread=32, staticSharedMemory=100, dynamicSharedMemory=28,
    )  # fmt: skip
    builder.row(
        schema.TABLE_MEMCPY, **common, start=30, end=40, correlationId=2, bytes=4096, copyKind=1, srcKind=0, dstKind=2
    )
    builder.row(schema.TABLE_MEMSET, **common, start=50, end=60, correlationId=3, bytes=512, memKind=2)
    builder.row(schema.TABLE_GRAPH, **common, start=70, end=80, correlationId=4, graphExecId=9)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    found = trace.details
    kernel, copy, memset, graph = (
        int(np.flatnonzero(trace.operations.kind == kind)[0]) for kind in (
            GpuOperationKind.KERNEL, GpuOperationKind.MEMCPY, GpuOperationKind.MEMSET, GpuOperationKind.GRAPH
        )
    )  # fmt: skip
    assert trace.names[found.name[kernel]] == "gemm"
    assert trace.names[found.full_name[kernel]] == "void gemm<float>(int)"
    assert found.grid[kernel].tolist() == [4, 2, 1]
    assert found.block[kernel].tolist() == [128, 1, 1]
    assert (found.registers[kernel], found.shared_bytes[kernel], found.bytes[kernel]) == (32, 128, -1)
    assert (found.copy_kind[copy], found.bytes[copy]) == (CopyKind.HOST_TO_DEVICE, 4096)
    assert (found.source[copy], found.target[copy]) == (MemoryKind.PAGEABLE, MemoryKind.DEVICE)
    assert (found.name[copy], found.grid[copy].tolist()) == (-1, [-1, -1, -1])
    assert (found.bytes[memset], found.target[memset], found.source[memset]) == (512, MemoryKind.DEVICE, -1)
    assert (found.graph_exec[graph], found.graph_exec[kernel]) == (9, -1)


def test_a_trace_without_details_or_operations_says_unknown(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.kernel((0, 5), (10, 20))
    trace = open_trace(builder.write(tmp_path / "bare.sqlite"))
    found = trace.details
    assert (found.name.tolist(), found.registers.tolist(), found.shared_bytes.tolist()) == ([-1], [-1], [-1])
    empty = open_trace(TraceBuilder().write(tmp_path / "empty.sqlite"))
    assert len(empty.details) == 0
    assert len(empty.synchronizations) == 0


@pytest.mark.parametrize("name", ["pipeline", "graphs_node"])
def test_windows_are_put_together_in_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_trace(GOLDEN / f"{name}.sqlite")
    monkeypatch.setattr(source_module, "WINDOW_ROWS", 7)
    pieces = open_trace(GOLDEN / f"{name}.sqlite")
    for column in fields(OperationDetails):
        assert np.array_equal(getattr(pieces.details, column.name), getattr(whole.details, column.name))
    without = open_trace(GOLDEN / f"{name}.sqlite", with_details=False)
    for column in fields(GpuOperations):
        for trace in (pieces, without):
            assert np.array_equal(getattr(trace.operations, column.name), getattr(whole.operations, column.name))
    assert all((getattr(without.details, column.name) == -1).all() for column in fields(OperationDetails))


@pytest.mark.parametrize("name", ["pipeline", "threads", "graphs", "graphs_node", "long", "old_partial"])
def test_real_traces_agree_with_sqlite(name: str) -> None:
    path = GOLDEN / f"{name}.sqlite"
    trace = open_trace(path)
    found = trace.details
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT start, correlationId, value, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread "
            f"FROM {schema.TABLE_KERNEL} JOIN StringIds ON id = shortName"
        ).fetchall()
        labels = dict(database.execute("SELECT id, label FROM ENUM_CUDA_MEM_KIND"))
        directions = dict(database.execute("SELECT id, name FROM ENUM_CUDA_MEMCPY_OPER"))
        waits = dict(database.execute("SELECT id, label FROM ENUM_CUPTI_SYNC_TYPE"))
    kernels = np.flatnonzero(trace.operations.kind == GpuOperationKind.KERNEL)
    ours = [
        (
            int(trace.operations.start_ns[at]), int(trace.operations.correlation[at]), trace.names[found.name[at]],
            *found.grid[at].tolist(), *found.block[at].tolist(), int(found.registers[at]),
        )
        for at in kernels
    ]  # fmt: skip
    assert sorted(ours) == sorted(rows)
    assert {labels[kind].upper().replace(" ", "_") for kind in MemoryKind} == set(MemoryKind.__members__)
    assert directions[CopyKind.DEVICE_TO_HOST].endswith("_DTOH")
    assert directions[CopyKind.PEER_TO_PEER].endswith("_PTOP")
    assert "Stream sync" in waits[SynchronizationKind.STREAM]
