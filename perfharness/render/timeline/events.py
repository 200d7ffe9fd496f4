"""A process's trace as events of the Trace Event Format: slices, arrows, counters (docs/guides/exports.md).

Each kind of event is a source: the times of its events, and a function that writes some of them as lines of JSON.
Lines are made in chunks, so that the text of millions of events is never in memory as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.stages.roles import NOT_COUNTED
from perfharness.analysis.timeline.cuda_calls import DIRECTIONS, operation_names
from perfharness.analysis.timeline.intervals import NO_PARENT
from perfharness.model.trace import GpuOperationKind, Int64, MemoryKind, Style, pid_of, tid_of
from perfharness.render.timeline.tracks import Ids, make_tracks, name_process, rows_that_nest

SLICE = '{"ph":"X","name":%s,"cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{%s}}'
ARROW_START = '{"ph":"s","id":%d,"name":"launch","cat":"launch","pid":%d,"tid":%d,"ts":%.3f}'
ARROW_END = '{"ph":"f","bp":"e","id":%d,"name":"launch","cat":"launch","pid":%d,"tid":%d,"ts":%.3f}'

Column = Callable[[Int64], Sequence[Any]]
"""Values of the events with these indices."""


@dataclass(frozen=True)
class Source:
    """Events of one kind: their times, a line of JSON, and the columns that fill it; only slices have a duration."""

    time_ns: Int64
    duration_ns: Int64
    template: str
    columns: tuple[Column, ...]

    def lines(self, at: Int64) -> list[str]:
        """The events with these indices."""
        return [self.template % row for row in zip(*(column(at) for column in self.columns), strict=True)]


def values_of(values: npt.NDArray[Any]) -> Column:
    """The values as they are."""
    return lambda at: values[at].tolist()


def _us(values: Int64) -> Column:
    return lambda at: (values[at] / 1000).tolist()


@dataclass(frozen=True)
class ProcessEvents:
    """All events of one process: metadata as lines, the others as sources, in drawing order."""

    metadata: list[str]
    sources: list[Source]
    arrows: int


def process_events(
    analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int, first_arrow: int
) -> ProcessEvents:
    """Events of a process's trace.

    Args:
        analysis: of the process's trace.
        name: the process's name.
        offset_ns: added to the trace's times.
        ids: gives out process and thread ids.
        place: index of the process.
        first_arrow: the id of its first arrow; ids of arrows are unique in the whole timeline.
    """
    host = _Host(analysis, name, offset_ns, ids, place)
    device = _Device(analysis, name, offset_ns, ids, place)
    arrows = list(_arrows(analysis, host, device, first_arrow))
    counters = [*_device_counters(analysis, device), *_item_counters(analysis, host, offset_ns)]
    return ProcessEvents(
        metadata=[*host.tracks.metadata, *device.tracks.metadata],
        sources=[*host.sources(), device.source(), *arrows, *counters],
        arrows=len(arrows[0].time_ns) if arrows else 0,
    )


class _Host:
    """Ranges and CUDA calls, by process, thread and task."""

    def __init__(self, analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int) -> None:
        self.analysis = analysis
        ranges, api = analysis.trace.ranges, analysis.trace.api
        self.order = analysis.table.order
        start = np.r_[ranges.start_ns[self.order], api.start_ns]
        end = np.r_[ranges.end_ns[self.order], api.end_ns]
        thread = np.r_[ranges.thread[self.order], api.thread]
        # A thread's stack and its calls share rows; ranges of tasks do not nest with them, and have rows of their own.
        is_task = np.r_[ranges.style[self.order] == Style.START_END, np.zeros(len(api), dtype=np.bool_)]
        task = np.where(is_task, np.r_[ranges.category[self.order], np.full(len(api), NO_PARENT)] + 1, NO_PARENT)
        lines, line = np.unique(np.stack([thread, task]), axis=1, return_inverse=True)
        line = line.ravel()
        os_pid = pid_of(thread)
        self.pid_of_os: dict[int, int] = {}
        metadata: list[str] = []
        for number in np.unique(os_pid).tolist():
            self.pid_of_os[number] = ids.pid(number)
            metadata += name_process(self.pid_of_os[number], f"{name} (process {number})", 1000 * place)
        names = [
            (f"thread {tid_of(np.int64(of))}" if to == NO_PARENT else f"thread {tid_of(np.int64(of))}, tasks", "row")
            for of, to in lines.T.tolist()
        ]
        self.tracks = make_tracks(
            ids, _translated(os_pid, self.pid_of_os), np.where(is_task, 0, tid_of(thread)), line,
            rows_that_nest(start, end, line), names,
        )  # fmt: skip
        self.tracks.metadata[:0] = metadata
        self.start, self.end = start + offset_ns, end + offset_ns

    def sources(self) -> Iterator[Source]:
        """Ranges, then calls."""
        trace, count = self.analysis.trace, len(self.order)
        kinds, of_range = _range_kinds(self.analysis)
        ranges, calls = np.arange(count), np.arange(count, len(self.start))
        names = _escaped(trace.names, trace.ranges.name[self.order])
        yield _slices(self, ranges, names, kinds, _range_args(self.analysis, of_range))
        correlation, result = trace.api.correlation, trace.api.return_value

        def call_args(at: Int64) -> list[str]:
            return [
                f'"correlation_id":{number}' + (f',"return_value":{value}' if value else "")
                for number, value in zip(correlation[at].tolist(), result[at].tolist(), strict=True)
            ]

        kinds = np.full(len(calls), "cuda_api", dtype=object)
        yield _slices(self, calls, _escaped(trace.names, trace.api.name), kinds, call_args)


class _Device:
    """GPU operations, by process, device and stream."""

    def __init__(self, analysis: Analysis, name: str, offset_ns: int, ids: Ids, place: int) -> None:
        self.analysis = analysis
        operations = analysis.trace.operations
        self.start, self.end = operations.start_ns + offset_ns, operations.end_ns + offset_ns
        gpus, gpu = np.unique(np.stack([operations.process, operations.device]), axis=1, return_inverse=True)
        self.gpu = gpu.ravel()
        lines, line = np.unique(np.stack([self.gpu, operations.stream]), axis=1, return_inverse=True)
        line = line.ravel()
        metadata: list[str] = []
        self.pids: list[int] = []
        for number, (process, device) in enumerate(gpus.T.tolist()):
            pid = ids.pid()
            self.pids.append(pid)
            label = f"{name}, GPU {device}{_device_name(analysis, device)} (process {pid_of(np.int64(process))})"
            metadata += name_process(pid, label, 1000 * place + 1 + number)
        pid_of_gpu = np.asarray(self.pids, dtype=np.int64)
        names = [(f"stream {stream}", "row") for stream in lines[1].tolist()]
        self.tracks = make_tracks(
            ids, pid_of_gpu[self.gpu], operations.stream, line, rows_that_nest(self.start, self.end, line), names
        )
        self.tracks.metadata[:0] = metadata

    def source(self) -> Source:
        """All operations."""
        kinds = np.asarray(["kernel", "memcpy", "memset", "graph"], dtype=object)
        names, codes = operation_names(self.analysis.trace)
        kind = kinds[self.analysis.trace.operations.kind]
        return _slices(self, np.arange(len(kind)), _escaped(names, codes), kind, _operation_args(self.analysis))


def _slices(
    of: _Host | _Device, place: Int64, names: npt.NDArray[np.object_], category: npt.NDArray[np.object_], args: Column
) -> Source:
    """Complete events. `place`: their indices in the tracks; all other arrays are aligned with them."""
    start, duration = of.start[place], of.end[place] - of.start[place]
    pid, tid = of.tracks.pid[place], of.tracks.tid[place]
    columns = (values_of(names), values_of(category), values_of(pid), values_of(tid), _us(start), _us(duration), args)
    return Source(start, duration, SLICE, columns)


def _escaped(names: list[str], codes: Int64) -> npt.NDArray[np.object_]:
    """Names as JSON strings; a code of -1 is the empty one."""
    texts = np.full(len(names) + 1, '""', dtype=object)
    for code in np.unique(codes[codes >= 0]).tolist():
        texts[code] = json.dumps(names[code])
    escaped: npt.NDArray[np.object_] = texts[codes]
    return escaped


def _translated(values: Int64, of: dict[int, int]) -> Int64:
    known = np.asarray(sorted(of), dtype=np.int64)
    if not len(known):
        return values
    return np.asarray([of[value] for value in known.tolist()], dtype=np.int64)[np.searchsorted(known, values)]


def _device_name(analysis: Analysis, device: int) -> str:
    names = analysis.trace.meta.device_names
    return f" {names[device]}" if 0 <= device < len(names) else ""


# -- ranges -----------------------------------------------------------------------------------------------------------


def _range_kinds(analysis: Analysis) -> tuple[npt.NDArray[np.object_], Int64]:
    """For the ranges in order: their kind, and their stage (-1: not in the results)."""
    stage_of = np.full(len(analysis.trace.ranges), NO_PARENT, dtype=np.int64)
    stage_of[analysis.stages.index] = np.arange(len(analysis.stages))
    stage = stage_of[analysis.table.order]
    is_batch = np.append(analysis.stages.is_batch, False)[stage]
    kinds = np.asarray(["range", "stage", "batch"], dtype=object)
    return kinds[(stage >= 0).astype(np.int64) + is_batch], stage


def _range_args(analysis: Analysis, stage_of: Int64) -> Column:
    ranges, order = analysis.trace.ranges, analysis.table.order
    stages, stage_times = analysis.stages, analysis.stage_times
    owners = [json.dumps(owner) for owner in stages.owners]
    domains = _escaped(analysis.trace.names, ranges.domain)
    projection, known = analysis.table.projection, analysis.table.gpu_known

    def of_stage(stage: int) -> str:
        batch = int(stage_times.batch[stage])
        text = f',"recorder":{owners[stages.owner[stage]]}'
        if batch >= 0:
            items = int(stages.items[batch])
            text += f',"batch_index":{stages.batch_index[batch]},"items":{"null" if items == NOT_COUNTED else items}'
            text += f',"warmup":{"true" if stage_times.warmup[stage] else "false"}'
        return text

    def args(at: Int64) -> list[str]:
        at_range = order[at]
        has_work = projection.operation_count[at_range] > 0
        gpu_us = np.where(has_work, projection.end_ns[at_range] - projection.start_ns[at_range], 0) / 1000
        busy_us = np.where(has_work, projection.busy_ns[at_range], 0) / 1000
        rows = zip(
            ranges.row[at_range].tolist(), stage_of[at].tolist(), domains[at_range].tolist(),
            known[at_range].tolist(), gpu_us.tolist(), busy_us.tolist(), strict=True,
        )  # fmt: skip
        return [
            f'"range_id":{row}'
            + (of_stage(stage) if stage >= 0 else f',"domain":{domain}')
            + (f',"gpu_us":{gpu:.3f},"gpu_busy_us":{busy:.3f}' if measured else ',"gpu_us":null,"gpu_busy_us":null')
            for row, stage, domain, measured, gpu, busy in rows
        ]

    return args


# -- operations -------------------------------------------------------------------------------------------------------


def _operation_args(analysis: Analysis) -> Column:
    operations, details = analysis.trace.operations, analysis.trace.details
    memory = {int(kind): f'"{kind.name.lower()}"' for kind in MemoryKind}

    def kernel(at: int) -> str:
        grid, block = details.grid[at].tolist(), details.block[at].tolist()
        return (
            f',"grid":{_known_triple(grid)},"block":{_known_triple(block)}'
            f',"registers_per_thread":{_known(details.registers[at])}'
            f',"shared_memory_bytes":{_known(details.shared_bytes[at])}'
        )

    def transfer(at: int) -> str:
        size, duration = int(details.bytes[at]), int(operations.end_ns[at] - operations.start_ns[at])
        text = f',"bytes":{_known(size)}'
        if size >= 0 and duration > 0:
            text += f',"gb_per_s":{size / duration:.3f}'
        source, target = memory.get(int(details.source[at])), memory.get(int(details.target[at]))
        return text + (f',"source":{source}' if source else "") + (f',"target":{target}' if target else "")

    def graph(at: int) -> str:
        return f',"graph_exec":{_known(details.graph_exec[at])}'

    of_kind = (kernel, transfer, transfer, graph)

    def args(at: Int64) -> list[str]:
        rows = zip(at.tolist(), operations.correlation[at].tolist(), operations.kind[at].tolist(), strict=True)
        return [f'"correlation_id":{number}' + of_kind[kind](place) for place, number, kind in rows]

    return args


def _known(value: int | np.int64) -> str:
    return "null" if value < 0 else str(value)


def _known_triple(values: list[int]) -> str:
    return "null" if values[0] < 0 else f"[{values[0]},{values[1]},{values[2]}]"


# -- arrows and counters ----------------------------------------------------------------------------------------------


def _arrows(analysis: Analysis, host: _Host, device: _Device, first_id: int) -> Iterator[Source]:
    """From the start of each launching call to the start of each operation that it started."""
    call, operation = analysis.launches.call + len(host.order), analysis.launches.operation  # ranges come before calls
    # An arrow cannot point back in time; there is none where clocks disagree by that much.
    forward = device.start[operation] >= host.start[call]
    if not forward.any():
        return
    ids = first_id + np.arange(int(forward.sum()))
    for template, of, place in ((ARROW_START, host, call[forward]), (ARROW_END, device, operation[forward])):
        time, pid, tid = of.start[place], of.tracks.pid[place], of.tracks.tid[place]
        yield Source(time, np.zeros_like(time), template, (values_of(ids), values_of(pid), values_of(tid), _us(time)))


def _device_counters(analysis: Analysis, device: _Device) -> Iterator[Source]:
    """Per process and device: concurrent operations, and the rate of running copies, by direction."""
    operations, details = analysis.trace.operations, analysis.trace.details
    length = device.end - device.start
    rate = np.where((details.bytes >= 0) & (length > 0), details.bytes / np.maximum(length, 1), 0.0)
    for gpu, pid in enumerate(device.pids):
        mine = device.gpu == gpu
        yield _steps("operations", "in flight", pid, device.start[mine], device.end[mine], np.ones(int(mine.sum())))
        for direction, text in DIRECTIONS.items():
            copies = mine & (operations.kind == GpuOperationKind.MEMCPY) & (details.copy_kind == direction)
            if copies.any():
                start, end = device.start[copies], device.end[copies]
                yield _steps(f"copies {text}", "GB/s", pid, start, end, rate[copies])


def _steps(name: str, unit: str, pid: int, start: Int64, end: Int64, height: npt.NDArray[np.float64]) -> Source:
    """A counter that is the sum of the heights of the intervals at each moment."""
    times, place = np.unique(np.r_[start, end], return_inverse=True)
    change = np.bincount(place.ravel(), weights=np.r_[height, -height], minlength=len(times))
    return _counter(name, unit, pid, times, np.asarray(np.round(np.cumsum(change), 3) + 0.0))


def _item_counters(analysis: Analysis, host: _Host, offset_ns: int) -> Iterator[Source]:
    """Per process and recorder: the items of the latest batch."""
    stages = analysis.stages
    batches = np.flatnonzero(stages.is_batch & (stages.items != NOT_COUNTED))
    owner, os_pid = stages.owner[batches], pid_of(stages.thread[batches])
    for code, process in np.unique(np.stack([owner, os_pid]), axis=1).T.tolist():
        mine = batches[(owner == code) & (os_pid == process)]
        start = stages.start_ns[mine]
        order = np.argsort(start, kind="stable")
        yield _counter(
            f"{stages.owners[code]}, batch of", "items", host.pid_of_os[process], start[order] + offset_ns,
            stages.items[mine][order].astype(np.float64),
        )  # fmt: skip


def _counter(name: str, unit: str, pid: int, times: Int64, values: npt.NDArray[np.float64]) -> Source:
    head = f'{{"ph":"C","name":{json.dumps(name)},"pid":{pid}'.replace("%", "%%")
    template = head + f',"ts":%.3f,"args":{{"{unit}":%g}}}}'
    return Source(times, np.zeros_like(times), template, (_us(times), values_of(values)))
