"""Tables of kernels, copies, memsets and graph replays, with the call and stage that started them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.stages.times import stage_of_calls
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.columns import Int64
from perfharness.model.trace import CopyKind, GpuOperationKind, MemoryKind, OperationDetails, Trace, pid_of, tid_of
from perfharness.runs.tables.ranges import constant, names_of, nullable, path_texts, unix_times, unknown_is_null

Columns = dict[str, pa.Array]


def operation_rows(name: str, analysis: Analysis, process: str) -> pa.Table:
    """Make one of `TABLES`, in order of start."""
    kind, own_columns = TABLES[name]
    trace, operations = analysis.trace, analysis.trace.operations
    at = np.flatnonzero(operations.kind == kind)
    at = at[np.lexsort((operations.stream[at], operations.start_ns[at]))]
    return pa.table(
        {
            "process": constant(process, len(at)),
            **own_columns(trace, trace.details, at),
            "pid": pid_of(operations.process[at]),
            "device": unknown_is_null(operations.device[at]),
            "stream": unknown_is_null(operations.stream[at]),
            "start_ns": operations.start_ns[at],
            "start_unix_ns": unix_times(operations.start_ns[at], trace.meta.session_start_unix_ns),
            "duration_ns": (operations.end_ns - operations.start_ns)[at],
            "correlation_id": unknown_is_null(operations.correlation[at]),
            **_call_columns(analysis, at),
        }
    )


def _kernel_columns(trace: Trace, details: OperationDetails, at: Int64) -> Columns:
    return {
        "name": names_of(details.name[at], trace.names),
        "full_name": names_of(details.full_name[at], trace.names),
        **{f"grid_{axis}": unknown_is_null(details.grid[at, place]) for place, axis in enumerate("xyz")},
        **{f"block_{axis}": unknown_is_null(details.block[at, place]) for place, axis in enumerate("xyz")},
        "registers_per_thread": unknown_is_null(details.registers[at]),
        "shared_memory_bytes": unknown_is_null(details.shared_bytes[at]),
        "graph_node": unknown_is_null(details.graph_node[at]),
    }


def _copy_columns(trace: Trace, details: OperationDetails, at: Int64) -> Columns:
    duration = (trace.operations.end_ns - trace.operations.start_ns)[at]
    size = details.bytes[at]
    known = (size >= 0) & (duration > 0)
    return {
        "direction": enum_column(details.copy_kind[at], CopyKind),
        "source": enum_column(details.source[at], MemoryKind),
        "target": enum_column(details.target[at], MemoryKind),
        "bytes": unknown_is_null(size),
        "gb_per_s": nullable(size / np.maximum(duration, 1), ~known),
        "graph_node": unknown_is_null(details.graph_node[at]),
    }


def _memset_columns(_trace: Trace, details: OperationDetails, at: Int64) -> Columns:
    return {
        "target": enum_column(details.target[at], MemoryKind),
        "bytes": unknown_is_null(details.bytes[at]),
        "graph_node": unknown_is_null(details.graph_node[at]),
    }


def _graph_columns(_trace: Trace, details: OperationDetails, at: Int64) -> Columns:
    return {"graph_exec": unknown_is_null(details.graph_exec[at])}


TABLES: dict[str, tuple[GpuOperationKind, Callable[[Trace, OperationDetails, Int64], Columns]]] = {
    "kernels": (GpuOperationKind.KERNEL, _kernel_columns),
    "copies": (GpuOperationKind.MEMCPY, _copy_columns),
    "memsets": (GpuOperationKind.MEMSET, _memset_columns),
    "graphs": (GpuOperationKind.GRAPH, _graph_columns),
}
"""Kinds and own columns of tables. Graphs are replays that were traced as a whole."""


def enum_column(codes: Int64, kind: type[CopyKind] | type[MemoryKind]) -> pa.DictionaryArray:
    """Make a column of lower-case names; -1 is null, numbers of a newer CUDA are `unknown`."""
    names = [member.name.lower() for member in kind]
    return names_of(np.where(codes < len(names), codes, int(kind.UNKNOWN)), names)


def _call_columns(analysis: Analysis, at: Int64) -> Columns:
    trace, stages = analysis.trace, analysis.stages
    call_of = np.full(len(trace.operations), NO_PARENT, dtype=np.int64)
    call_of[analysis.launches.operation] = analysis.launches.call
    call = call_of[at]
    has_call = call >= 0
    stage = np.full(len(at), NO_PARENT, dtype=np.int64)
    stage[has_call] = stage_of_calls(stages, trace.api, call[has_call])
    has_stage = stage >= 0
    batch = np.where(has_stage, _append(analysis.stage_times.batch)[stage], NO_PARENT)
    call_start, call_end = _append(trace.api.start_ns)[call], _append(trace.api.end_ns)[call]
    return {
        "call": names_of(_append(trace.api.name)[call], trace.names),
        "call_tid": nullable(tid_of(_append(trace.api.thread)[call]), ~has_call),
        "call_start_ns": nullable(call_start, ~has_call),
        "call_duration_ns": nullable(call_end - call_start, ~has_call),
        "launch_latency_ns": nullable(trace.operations.start_ns[at] - call_start, ~has_call),
        "recorder": names_of(_append(stages.owner)[stage], stages.owners),
        "path": names_of(_append(stages.paths.code)[stage], path_texts(stages)),
        "range_id": nullable(_append(analysis.table.ranges.row[stages.index])[stage], ~has_stage),
        "batch_index": nullable(_append(stages.batch_index)[batch], batch < 0),
        "warmup": nullable(np.append(analysis.stage_times.warmup, False)[stage], ~has_stage),
    }


def _append(values: Int64) -> Int64:
    """Append -1, so that index -1 finds it."""
    return np.append(values, np.int64(-1))
