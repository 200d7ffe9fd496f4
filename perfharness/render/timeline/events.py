"""Trace of a process as events of the Trace Event Format: slices and arrows (docs/reference/results.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.stages.roles import NOT_COUNTED
from perfharness.analysis.timeline.cuda_calls import operation_names
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.columns import Int64
from perfharness.model.trace import GpuOperationKind, MemoryKind, Style, pid_of, tid_of
from perfharness.render.timeline.rows import Event, Ids, Line, Slices, named, placed

HOST_KINDS = ("range", "stage", "batch", "cuda_api")
DEVICE_KINDS = ("kernel", "memcpy", "memset", "graph")

Args = Callable[[int], dict[str, Any]]
"""Returns the arguments of the slice with this index."""


def process_events(analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int) -> Iterator[Event]:
    """Yield the events of a process's trace.

    Args:
        name: name of the process.
        offset_ns: added to all times.
        ids: source of ids that are unique in the timeline.
        place: index of the process.
    """
    trace = analysis.trace
    host = _host(analysis, name, offset_ns, ids, place)
    yield from host.names
    order, count = analysis.table.order, len(analysis.table.order)
    kinds, range_args = _ranges(analysis)
    call_args = _calls(analysis)

    def host_args(at: int) -> dict[str, Any]:
        return range_args(at) if at < count else call_args(at - count)

    codes = np.r_[trace.ranges.name[order], trace.api.name]
    kinds = np.r_[kinds, np.full(len(trace.api), len(HOST_KINDS) - 1)]
    yield from _slices(host, trace.names, codes, HOST_KINDS, kinds, host_args)

    device = _device(analysis, name, offset_ns, ids, place)
    yield from device.names
    operations, codes = operation_names(trace)
    yield from _slices(device, operations, codes, DEVICE_KINDS, trace.operations.kind, _operations(analysis))
    yield from _arrows(analysis, host, device, ids)


def _host(analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int) -> Slices:
    """Ranges, then CUDA calls, by thread; ranges of tasks, which do not nest, have their own rows."""
    ranges, api, order = analysis.trace.ranges, analysis.trace.api, analysis.table.order
    thread = np.r_[ranges.thread[order], api.thread]
    is_task = np.r_[ranges.style[order] == Style.START_END, np.zeros(len(api), dtype=np.bool_)]
    task = np.where(is_task, np.r_[ranges.category[order], np.full(len(api), NO_PARENT)] + 1, NO_PARENT)
    keys, of = np.unique(np.stack([thread, task]), axis=1, return_inverse=True)
    pids: dict[int, int] = {}
    names: list[Event] = []
    lines = []
    for number, of_task in keys.T.tolist():
        process, tid = int(pid_of(np.int64(number))), int(tid_of(np.int64(number)))
        if process not in pids:
            pids[process] = ids.pid(process)
            names += named("process", f"{name} (process {process})", 1000 * place, pid=pids[process])
        if of_task == NO_PARENT:
            lines.append(Line(pids[process], f"thread {tid}", tid))
        else:
            lines.append(Line(pids[process], f"thread {tid}, tasks"))
    start, end = np.r_[ranges.start_ns[order], api.start_ns], np.r_[ranges.end_ns[order], api.end_ns]
    return placed(start + offset_ns, end + offset_ns, of.ravel(), lines, ids, names)


def _device(analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int) -> Slices:
    operations, devices = analysis.trace.operations, analysis.trace.meta.device_names
    columns = np.stack([operations.process, operations.device, operations.stream])
    keys, of = np.unique(columns, axis=1, return_inverse=True)
    pids: dict[tuple[int, int], int] = {}
    names: list[Event] = []
    lines = []
    for process, device, stream in keys.T.tolist():
        if (process, device) not in pids:
            pids[process, device] = ids.pid()
            model = f" {devices[device]}" if 0 <= device < len(devices) else ""
            label = f"{name}, GPU {device}{model} (process {pid_of(np.int64(process))})"
            names += named("process", label, 1000 * place + len(pids), pid=pids[process, device])
        lines.append(Line(pids[process, device], f"stream {stream}"))
    return placed(operations.start_ns + offset_ns, operations.end_ns + offset_ns, of.ravel(), lines, ids, names)


def _slices(
    of: Slices, names: Sequence[str], codes: Int64, categories: Sequence[str], kinds: Int64, args: Args
) -> Iterator[Event]:
    """Complete events, outer ones first, because viewers draw in file order."""
    start, duration = (of.start / 1000).tolist(), ((of.end - of.start) / 1000).tolist()
    code, kind = codes.tolist(), kinds.tolist()
    for at in np.lexsort((-of.end, of.start)).tolist():
        yield {
            "ph": "X",
            "name": names[code[at]] if code[at] >= 0 else "",
            "cat": categories[kind[at]],
            "pid": of.pid[at],
            "tid": of.tid[at],
            "ts": start[at],
            "dur": duration[at],
            "args": args(at),
        }


def _ranges(analysis: Analysis) -> tuple[Int64, Args]:
    trace, order = analysis.trace, analysis.table.order
    stages, times, projection = analysis.stages, analysis.stage_times, analysis.table.projection
    stage_of = np.full(len(trace.ranges), NO_PARENT, dtype=np.int64)
    stage_of[stages.index] = np.arange(len(stages))
    stage = stage_of[order]
    kinds = (stage >= 0).astype(np.int64) + np.append(stages.is_batch, False)[stage]
    has_work = projection.operation_count > 0
    gpu_us = (np.where(has_work, projection.end_ns - projection.start_ns, 0)[order] / 1000).tolist()
    busy_us = (np.where(has_work, projection.busy_ns, 0)[order] / 1000).tolist()
    known, rows = analysis.table.gpu_known[order].tolist(), trace.ranges.row[order].tolist()
    domains, stage_at = trace.ranges.domain[order].tolist(), stage.tolist()

    def of_stage(stage: int) -> dict[str, Any]:
        batch = int(times.batch[stage])
        found: dict[str, Any] = {"recorder": stages.owners[stages.owner[stage]]}
        if batch >= 0:
            items = int(stages.items[batch])
            found["batch_index"] = int(stages.batch_index[batch])
            found["items"] = None if items == NOT_COUNTED else items
            found["warmup"] = bool(times.warmup[stage])
        return found

    def args(at: int) -> dict[str, Any]:
        domain = {"domain": trace.names[domains[at]] if domains[at] >= 0 else ""}
        return {
            "range_id": rows[at],
            **(of_stage(stage_at[at]) if stage_at[at] >= 0 else domain),
            "gpu_us": gpu_us[at] if known[at] else None,
            "gpu_busy_us": busy_us[at] if known[at] else None,
        }

    return kinds, args


def _calls(analysis: Analysis) -> Args:
    correlation, result = analysis.trace.api.correlation.tolist(), analysis.trace.api.return_value.tolist()

    def args(at: int) -> dict[str, Any]:
        failed = {"return_value": result[at]} if result[at] else {}
        return {"correlation_id": correlation[at], **failed}

    return args


def _operations(analysis: Analysis) -> Args:
    operations, details = analysis.trace.operations, analysis.trace.details
    memory = {int(kind): kind.name.lower() for kind in MemoryKind}
    correlation, kinds = operations.correlation.tolist(), operations.kind.tolist()

    def args(at: int) -> dict[str, Any]:
        found: dict[str, Any] = {"correlation_id": correlation[at]}
        kind = kinds[at]
        if kind == GpuOperationKind.KERNEL:
            found["grid"] = _known(details.grid[at].tolist())
            found["block"] = _known(details.block[at].tolist())
            found["registers_per_thread"] = _known(int(details.registers[at]))
            found["shared_memory_bytes"] = _known(int(details.shared_bytes[at]))
        elif kind == GpuOperationKind.GRAPH:
            found["graph_exec"] = _known(int(details.graph_exec[at]))
        else:
            size, duration = int(details.bytes[at]), int(operations.end_ns[at] - operations.start_ns[at])
            found["bytes"] = _known(size)
            if size >= 0 and duration > 0:
                found["gb_per_s"] = round(size / duration, 3)
            ends = {"source": int(details.source[at]), "target": int(details.target[at])}
            found |= {end: memory[code] for end, code in ends.items() if code in memory}
        return found

    return args


def _known(value: int | list[int]) -> int | list[int] | None:
    """The value or values, or None if negative."""
    first = value if isinstance(value, int) else value[0]
    return None if first < 0 else value


def _arrows(analysis: Analysis, host: Slices, device: Slices, ids: Ids) -> Iterator[Event]:
    """Arrows from each launching call to the GPU operations that it started."""
    first_call = len(analysis.table.order)
    launches = zip(analysis.launches.call.tolist(), analysis.launches.operation.tolist(), strict=True)
    for call, operation in ((call + first_call, operation) for call, operation in launches):
        begin, end = int(host.start[call]), int(device.start[operation])
        if end < begin:  # clock error: an arrow cannot point back in time
            continue
        both = {"id": next(ids.arrows), "name": "launch", "cat": "launch"}
        yield {"ph": "s", **both, "pid": host.pid[call], "tid": host.tid[call], "ts": begin / 1000}
        yield {
            "ph": "f",
            "bp": "e",
            **both,
            "pid": device.pid[operation],
            "tid": device.tid[operation],
            "ts": end / 1000,
        }
