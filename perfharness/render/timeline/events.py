"""A process's trace as events of the Trace Event Format: slices, arrows, counters (docs/guides/exports.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.ranks import RankCalls
from perfharness.analysis.stages.roles import NOT_COUNTED
from perfharness.analysis.timeline.cuda_calls import DIRECTIONS, operation_names
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.trace import GpuOperationKind, Int64, MemoryKind, Style, pid_of, tid_of
from perfharness.render.timeline.rows import Event, Ids, Line, Slices, named, placed

HOST_KINDS = ("range", "stage", "batch", "cuda_api")
DEVICE_KINDS = ("kernel", "memcpy", "memset", "graph")
RANKS = "ranks: collectives, and waiting for the last rank"

Args = Callable[[int], dict[str, Any]]
"""Arguments of the slice with this index."""


def process_events(analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int) -> Iterator[Event]:
    """Events of a process's trace.

    Args:
        name: the process's name.
        offset_ns: added to the trace's times.
        ids: gives out ids that are unique in the whole timeline.
        place: index of the process.
    """
    pids: dict[int, int] = {}
    trace = analysis.trace
    host, names = _host(analysis, name, offset_ns, ids, place, pids)
    yield from names
    order, count = analysis.table.order, len(analysis.table.order)
    kinds, range_args = _ranges(analysis)
    call_args = _calls(analysis)

    def host_args(at: int) -> dict[str, Any]:
        return range_args(at) if at < count else call_args(at - count)

    codes = np.r_[trace.ranges.name[order], trace.api.name]
    kinds = np.r_[kinds, np.full(len(trace.api), len(HOST_KINDS) - 1)]
    yield from _slices(host, trace.names, codes, HOST_KINDS, kinds, host_args)

    device, gpu, gpu_pids, names = _device(analysis, name, offset_ns, ids, place)
    yield from names
    operations, codes = operation_names(trace)
    yield from _slices(device, operations, codes, DEVICE_KINDS, trace.operations.kind, _operations(analysis))
    yield from _arrows(analysis, host, device, ids)
    yield from _device_counters(analysis, device, gpu, gpu_pids)
    yield from _item_counters(analysis, pids, offset_ns)


def _host(
    analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int, pids: dict[int, int]
) -> tuple[Slices, list[Event]]:
    """Ranges, then CUDA calls, by thread; ranges of tasks do not nest with them, and have rows of their own."""
    ranges, api, order = analysis.trace.ranges, analysis.trace.api, analysis.table.order
    thread = np.r_[ranges.thread[order], api.thread]
    is_task = np.r_[ranges.style[order] == Style.START_END, np.zeros(len(api), dtype=np.bool_)]
    task = np.where(is_task, np.r_[ranges.category[order], np.full(len(api), NO_PARENT)] + 1, NO_PARENT)
    keys, of = np.unique(np.stack([thread, task]), axis=1, return_inverse=True)
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
    slices = placed(start + offset_ns, end + offset_ns, of.ravel(), lines, ids)
    return slices, [*names, *slices.names]


def _device(
    analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int
) -> tuple[Slices, Int64, list[int], list[Event]]:
    """GPU operations by process, device and stream; and the GPU of each, with the timeline's process of each GPU."""
    operations, devices = analysis.trace.operations, analysis.trace.meta.device_names
    gpus, gpu = np.unique(np.stack([operations.process, operations.device]), axis=1, return_inverse=True)
    gpu = gpu.ravel()
    keys, of = np.unique(np.stack([gpu, operations.stream]), axis=1, return_inverse=True)
    names: list[Event] = []
    pids = []
    for number, (process, device) in enumerate(gpus.T.tolist(), 1):
        pids.append(ids.pid())
        model = f" {devices[device]}" if 0 <= device < len(devices) else ""
        label = f"{name}, GPU {device}{model} (process {pid_of(np.int64(process))})"
        names += named("process", label, 1000 * place + number, pid=pids[-1])
    lines = [Line(pids[at], f"stream {stream}") for at, stream in keys.T.tolist()]
    slices = placed(operations.start_ns + offset_ns, operations.end_ns + offset_ns, of.ravel(), lines, ids)
    return slices, gpu, pids, [*names, *slices.names]


def _slices(
    of: Slices, names: Sequence[str], codes: Int64, categories: Sequence[str], kinds: Int64, args: Args
) -> Iterator[Event]:
    """Complete events, those around others first: viewers draw them in the order of the file."""
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
    """The kind and the arguments of the ranges, in order."""
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
    """The value, or the values; None where they are negative."""
    first = value if isinstance(value, int) else value[0]
    return None if first < 0 else value


def _arrows(analysis: Analysis, host: Slices, device: Slices, ids: Ids) -> Iterator[Event]:
    """From the start of each launching call to the start of each operation that it started."""
    first_call = len(analysis.table.order)
    launches = zip(analysis.launches.call.tolist(), analysis.launches.operation.tolist(), strict=True)
    for call, operation in ((call + first_call, operation) for call, operation in launches):
        begin, end = int(host.start[call]), int(device.start[operation])
        if end < begin:  # clocks disagree by that much; an arrow cannot point back in time
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


def _device_counters(analysis: Analysis, device: Slices, gpu: Int64, pids: Sequence[int]) -> Iterator[Event]:
    """Of each process and device: concurrent operations, and the rate of running copies, by direction."""
    operations, details = analysis.trace.operations, analysis.trace.details
    length = device.end - device.start
    rate = np.where((details.bytes >= 0) & (length > 0), details.bytes / np.maximum(length, 1), 0.0)
    for number, pid in enumerate(pids):
        mine = gpu == number
        yield from _steps("operations", "in flight", pid, device, mine, np.ones(len(gpu)))
        for direction, text in DIRECTIONS.items():
            copies = mine & (operations.kind == GpuOperationKind.MEMCPY) & (details.copy_kind == direction)
            if copies.any():
                yield from _steps(f"copies {text}", "GB/s", pid, device, copies, rate)


def _steps(
    name: str, unit: str, pid: int, of: Slices, mine: npt.NDArray[np.bool_], height: npt.NDArray[np.float64]
) -> Iterator[Event]:
    """A counter that is the sum of the heights of the slices at each moment."""
    times, place = np.unique(np.r_[of.start[mine], of.end[mine]], return_inverse=True)
    change = np.bincount(place.ravel(), weights=np.r_[height[mine], -height[mine]], minlength=len(times))
    yield from _counter(name, unit, pid, times, np.round(np.cumsum(change), 3) + 0.0)


def _item_counters(analysis: Analysis, pids: Mapping[int, int], offset_ns: int) -> Iterator[Event]:
    """Of each process and recorder: the items of the latest batch."""
    stages = analysis.stages
    batches = np.flatnonzero(stages.is_batch & (stages.items != NOT_COUNTED))
    batches = batches[np.argsort(stages.start_ns[batches], kind="stable")]
    owner, os_pid = stages.owner[batches], pid_of(stages.thread[batches])
    for code, process in np.unique(np.stack([owner, os_pid]), axis=1).T.tolist():
        mine = batches[(owner == code) & (os_pid == process)]
        name, times = f"{stages.owners[code]}, batch of", stages.start_ns[mine] + offset_ns
        yield from _counter(name, "items", pids[process], times, stages.items[mine])


def _counter(name: str, unit: str, pid: int, times: Int64, values: npt.NDArray[Any]) -> Iterator[Event]:
    for time, value in zip((times / 1000).tolist(), values.tolist(), strict=True):
        yield {"ph": "C", "name": name, "pid": pid, "ts": time, "args": {unit: value}}


def rank_events(ranks: Sequence[RankCalls], offsets_ns: Mapping[str, int], ids: Ids, place: int) -> Iterator[Event]:
    """A row for each rank: its collectives, and in each what it waited until the last rank had come.

    Args:
        ranks: in their order.
        offsets_ns: by process, what is added to the times of its trace.
    """
    shown = [one for one in ranks if one.clock_of in offsets_ns and len(one.start_ns)]
    if not shown:
        return
    pid = ids.pid()
    yield from named("process", RANKS, place, pid=pid)
    for one in shown:
        waits = np.flatnonzero(one.waiting_ns > 0)
        start = one.start_ns + offsets_ns[one.clock_of]
        end = start + one.end_ns - one.start_ns
        line = Line(pid, f"rank {one.rank}")
        starts, ends = np.r_[start, start[waits]], np.r_[end, start[waits] + one.waiting_ns[waits]]
        slices = placed(starts, ends, np.zeros_like(starts), [line], ids)
        waited = list(zip(one.waiting_ns.tolist(), one.last_rank.tolist(), strict=True))
        args: list[dict[str, Any]] = [
            {"waiting_ms": ns / 1e6, "last_rank": last} if ns >= 0 else {} for ns, last in waited
        ]
        names = [*one.operation, *(f"waits for rank {waited[at][1]}" for at in waits.tolist())]
        kinds = np.repeat([0, 1], [len(start), len(waits)])
        args += [{}] * len(waits)
        yield from slices.names
        yield from _slices(slices, names, np.arange(len(names)), ("communication", "waiting"), kinds, args.__getitem__)
