"""Calls and operations of a trace that pass by, block by block, in order of start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import (
    ApiCalls,
    GpuOperationKind,
    Int64,
    NvtxMarks,
    NvtxRanges,
    OperationBlock,
    TraceMeta,
    in_order_of_start,
    joined,
)
from perfharness.trace.names import NameTable
from perfharness.trace.open_source import open_source
from perfharness.trace.parallel import Readers
from perfharness.trace.source import ROW_ID, TraceSource, Window
from perfharness.trace.validate import check_calls, check_operations

API_COLUMNS = ["start", "end", "globalTid", "correlationId", "nameId"]
BLOCK_COLUMNS = ["start", "end", "globalPid", "correlationId"]
RETURN_VALUE = "returnValue"

OPERATION_TABLES = {
    GpuOperationKind.KERNEL: schema.TABLE_KERNEL,
    GpuOperationKind.MEMCPY: schema.TABLE_MEMCPY,
    GpuOperationKind.MEMSET: schema.TABLE_MEMSET,
    GpuOperationKind.GRAPH: schema.TABLE_GRAPH,
}

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class TraceStream:
    """`Events` of a file: ranges and marks are held, the rest is read when it is asked for."""

    path: Path
    ranges: NvtxRanges
    marks: NvtxMarks
    name_table: NameTable
    meta: TraceMeta
    windows: dict[str, list[Window]]

    @property
    def names(self) -> list[str]:
        """What name codes stand for."""
        return self.name_table.values

    @property
    def has_calls(self) -> bool:
        """Whether there is any CUDA call."""
        return bool(self.windows[schema.TABLE_API])

    @property
    def has_operations(self) -> bool:
        """Whether there is any GPU operation."""
        return any(self.windows[table] for table in OPERATION_TABLES.values())

    def map_calls(self, function: Callable[[ApiCalls], _Answer], *, in_order: bool = False) -> Iterator[_Answer]:
        """As `Events` has it; the function is called in the threads that read."""
        if in_order:
            yield from (function(block) for block in self._calls_in_order())
            return
        with Readers(self.path) as readers:
            reads = (read_calls(self.path, window, self.name_table) for window in self.windows[schema.TABLE_API])
            for answer in readers.map(_behind(read, function) for read in reads):
                if answer is not None:
                    yield answer

    def _calls_in_order(self) -> Iterator[ApiCalls]:
        if not self.has_calls:
            return
        with open_source(self.path) as source:
            columns = [*API_COLUMNS, RETURN_VALUE]
            for rows in source.integers_in_order(schema.TABLE_API, columns, by="start"):
                values = np.maximum(rows[RETURN_VALUE], 0)  # where this version has none, all went well
                yield _calls(self.path, rows, values, self.name_table)

    def operation_blocks(self, *, in_order: bool = False) -> Iterator[OperationBlock]:
        """As `Events` has it. The tables of kernels, copies, memsets and graphs are merged as they are read."""
        there = {kind: table for kind, table in OPERATION_TABLES.items() if self.windows[table]}
        if in_order:
            sources = {kind: self._operations_in_order(kind, table) for kind, table in there.items()}
            yield from merge(list(sources.values()))
            return
        with Readers(self.path) as readers:
            yield from merge([self._operations(readers, kind, table) for kind, table in there.items()])

    def _operations(self, readers: Readers, kind: GpuOperationKind, table: str) -> Iterator[OperationBlock]:
        return readers.map(_read_operations(self.path, kind, table, window) for window in self.windows[table])

    def _operations_in_order(self, kind: GpuOperationKind, table: str) -> Iterator[OperationBlock]:
        with open_source(self.path) as source:
            for rows in source.integers_in_order(table, BLOCK_COLUMNS, by="start"):
                yield _operations(self.path, kind, rows)


def _behind(
    read: Callable[[TraceSource], ApiCalls], function: Callable[[ApiCalls], _Answer]
) -> Callable[[TraceSource], _Answer | None]:
    """The function of what was read; None of no rows."""

    def both(source: TraceSource) -> _Answer | None:
        block = read(source)
        return function(in_order_of_start(block)) if len(block) else None

    return both


def read_calls(path: Path, window: Window, names: NameTable) -> Callable[[TraceSource], ApiCalls]:
    """What reads the calls of a window, in the order in which they stand in the file."""

    def read(source: TraceSource) -> ApiCalls:
        rows = source.integers(schema.TABLE_API, API_COLUMNS, window=window)
        return _calls(path, rows, _return_values(source, window, len(rows["start"])), names)

    return read


def _return_values(source: TraceSource, window: Window, count: int) -> Int64:
    """Nearly all calls return 0, so only the others are read."""
    values: Int64 = np.broadcast_to(np.int64(0), count)
    if RETURN_VALUE not in source.columns(schema.TABLE_API):
        return values
    failed = source.integers(schema.TABLE_API, [RETURN_VALUE], row_id=True, nonzero=RETURN_VALUE, window=window)
    if not len(failed[ROW_ID]):
        return values
    values = values.copy()
    row_ids = source.integers(schema.TABLE_API, [], row_id=True, window=window)[ROW_ID]
    values[np.searchsorted(row_ids, failed[ROW_ID])] = failed[RETURN_VALUE]
    return values


def _calls(path: Path, rows: dict[str, Int64], return_value: Int64, names: NameTable) -> ApiCalls:
    check_calls(path, rows["start"], rows["end"], rows["globalTid"])
    return ApiCalls(
        start_ns=rows["start"],
        end_ns=rows["end"],
        thread=rows["globalTid"],
        correlation=rows["correlationId"],
        name=names.codes_of_ids(rows["nameId"]),
        return_value=return_value,
    )


def _read_operations(
    path: Path, kind: GpuOperationKind, table: str, window: Window
) -> Callable[[TraceSource], OperationBlock]:
    def read(source: TraceSource) -> OperationBlock:
        return in_order_of_start(_operations(path, kind, source.integers(table, BLOCK_COLUMNS, window=window)))

    return read


def _operations(path: Path, kind: GpuOperationKind, rows: dict[str, Int64]) -> OperationBlock:
    check_operations(path, rows["start"], rows["end"], rows["globalPid"])
    return OperationBlock(
        start_ns=rows["start"],
        end_ns=rows["end"],
        process=rows["globalPid"],
        correlation=rows["correlationId"],
        kind=np.broadcast_to(np.int8(kind), len(rows["start"])),
    )


def merge(sources: list[Iterator[OperationBlock]]) -> Iterator[OperationBlock]:
    """Blocks of several sources, each in order of start, as one; up to the earliest of their last starts at a time."""
    heads = [_next(source) for source in sources]
    while any(head is not None for head in heads):
        reached = min(int(head.start_ns[-1]) for head in heads if head is not None)
        ready: list[OperationBlock] = []
        for place, head in enumerate(heads):
            if head is None:
                continue
            count = int(np.searchsorted(head.start_ns, reached, side="right"))
            if count:
                ready.append(_part(head, slice(0, count)))
            heads[place] = _part(head, slice(count, None)) if count < len(head) else _next(sources[place])
        yield ready[0] if len(ready) == 1 else in_order_of_start(joined(ready))


def _next(source: Iterator[OperationBlock]) -> OperationBlock | None:
    return next((block for block in source if len(block)), None)


def _part(block: OperationBlock, rows: slice) -> OperationBlock:
    return OperationBlock(
        block.start_ns[rows], block.end_ns[rows], block.process[rows], block.correlation[rows], block.kind[rows]
    )
