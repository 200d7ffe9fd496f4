"""The time of batches in parts that do not overlap: the innermost stage, and what the thread did in it.

Events are laid onto one line, batch behind batch, from the least to the most specific: what lies on top at a moment is
what that moment counts as. So the parts of a batch sum to its duration, to the nanosecond.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments.compilers import COMPILERS, compilers_of_stacks
from perfharness.analysis.slowest.results import Evidence, Reason
from perfharness.analysis.timeline.busy import expand
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES, CudaCalls
from perfharness.analysis.timeline.grouping import distinct, group_rows
from perfharness.analysis.timeline.operation_names import operation_names
from perfharness.model.diagnosis import HostActivity
from perfharness.model.host_samples import HostEventKind, HostEvents, HostState
from perfharness.model.trace import PROCESS_MASK, GpuOperationKind, Int64, Integers, OsWaitKind

REASON_OF_ACTIVITY = {
    HostActivity.LAUNCH: Reason.LAUNCH, HostActivity.SYNCHRONIZE: Reason.SYNCHRONIZE,
    HostActivity.ALLOCATE: Reason.ALLOCATE, HostActivity.COPY: Reason.COPY_CALL, HostActivity.LOAD: Reason.COMPILE,
    HostActivity.OTHER: Reason.CUDA_CALL,
}  # fmt: skip
REASON_OF_WAIT = {
    OsWaitKind.LOCK: Reason.LOCK, OsWaitKind.SLEEP: Reason.SLEEP, OsWaitKind.PROCESS: Reason.PROCESS,
    OsWaitKind.FILE: Reason.FILE, OsWaitKind.SOCKET: Reason.SOCKET,
}  # fmt: skip
REASON_OF_STATE = {
    HostState.RUNNABLE: Reason.CPU, HostState.GIL: Reason.INTERPRETER_LOCK, HostState.LOCK: Reason.LOCK,
    HostState.SLEEP: Reason.SLEEP, HostState.FILE: Reason.FILE, HostState.SOCKET: Reason.SOCKET,
    HostState.LOOPBACK: Reason.SOCKET, HostState.PROCESS: Reason.PROCESS, HostState.PIPE: Reason.PROCESS,
    HostState.OTHER: Reason.OFF_CPU,
}  # fmt: skip
REASON_OF_OPERATION = {
    GpuOperationKind.KERNEL: Reason.KERNEL, GpuOperationKind.MEMCPY: Reason.COPY,
    GpuOperationKind.MEMSET: Reason.MEMSET, GpuOperationKind.GRAPH: Reason.GRAPH,
}  # fmt: skip
ON_THE_GPU = frozenset(REASON_OF_OPERATION.values()) | {Reason.OTHER_WORK}
NAMED = (HostActivity.ALLOCATE, HostActivity.LOAD, HostActivity.OTHER)
"""Of these calls the function says more than what calls of the kind do."""
BLOCKING = (Reason.SYNCHRONIZE, Reason.COPY_CALL)
"""In calls of these, what the GPU does meanwhile is what the thread waits for."""
VERSION_OF_CALL = re.compile(r"_v\d+$")


@dataclass(frozen=True)
class PartKey:
    """What a part is: the path of the innermost stage (a code of `StagePaths`), what the thread did, and a name."""

    path: int
    reason: Reason
    name: str | None = None
    evidence: Evidence = "trace"


@dataclass(frozen=True)
class Segments:
    """Stretches of batches, in order of batch and time: `key` indexes `BatchParts.keys`; trace ns."""

    batch: Int64
    key: Int64
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True)
class BatchParts:
    """The parts of some batches. `rows` are theirs in the stage table; `ns` has shape (batches, keys)."""

    rows: Int64
    keys: list[PartKey]
    segments: Segments

    def matrix(self, places: Int64, keys: Int64) -> Int64:
        """Nanoseconds of some parts in some batches, both by their places."""
        column = np.full(len(self.keys), -1, dtype=np.int64)
        column[keys] = np.arange(len(keys))
        row = np.full(len(self.rows), -1, dtype=np.int64)
        row[places] = np.arange(len(places))
        found = np.zeros((len(places), len(keys)), dtype=np.int64)
        at, of = row[self.segments.batch], column[self.segments.key]
        chosen = (at >= 0) & (of >= 0)
        length = (self.segments.end_ns - self.segments.start_ns)[chosen]
        np.add.at(found, (at[chosen], of[chosen]), length)
        return found

    def stretches(self, place: int, keys: Sequence[int]) -> tuple[Int64, Int64]:
        """When a batch was in some of its parts: starts and ends."""
        at = (self.segments.batch == place) & np.isin(self.segments.key, np.asarray(keys, dtype=np.int64))
        return self.segments.start_ns[at], self.segments.end_ns[at]


class _Line:
    """Batches one behind the other on a line of time."""

    def __init__(self, analysis: Analysis, rows: Int64) -> None:
        stages = analysis.stages
        self.start_ns, self.end_ns = stages.start_ns[rows], stages.end_ns[rows]
        self.thread = stages.thread[rows]
        length = self.end_ns - self.start_ns
        self.begin = np.cumsum(length) - length
        self.stop = self.begin + length

    def place(self, batch: Int64, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
        """Where stretches, clipped to their batches, lie."""
        first, last = self.start_ns[batch], self.end_ns[batch]
        shift = self.begin[batch] - first
        return np.clip(start_ns, first, last) + shift, np.clip(end_ns, first, last) + shift


def events_inside(
    line_thread: Int64, line_start: Int64, line_end: Int64, thread: Int64, start_ns: Int64, end_ns: Int64
) -> tuple[Int64, Int64]:
    """Events that overlap batches of their thread: event by event its index, and the batch; in order of batch, start,
    and of equal starts the longer first. A moment (start = end) overlaps where it lies in the batch.
    """
    order = np.lexsort((-end_ns, start_ns, thread))
    sorted_thread = thread[order]
    events, batches = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for one in distinct(line_thread):
        first, last = np.searchsorted(sorted_thread, [one, one + 1]).tolist()
        mine = np.flatnonzero(line_thread == one)
        if first == last:
            continue
        of_thread = order[first:last]
        start, end = start_ns[of_thread], end_ns[of_thread]
        begin = np.searchsorted(np.maximum.accumulate(end), line_start[mine], side="left")
        stop = np.maximum(np.searchsorted(start, line_end[mine], side="left"), begin)
        member, question = expand(begin.astype(np.int64), stop.astype(np.int64))
        batch = mine[question]
        keep = (end[member] > line_start[batch]) | (start[member] >= line_start[batch])
        events.append(of_thread[member[keep]])
        batches.append(batch[keep])
    event, batch = np.concatenate(events), np.concatenate(batches)
    by_batch = np.argsort(batch, kind="stable")
    return event[by_batch], batch[by_batch]


@dataclass(frozen=True)
class _Layer:
    """Events on the line; of those that overlap, the later of the layer lies on top."""

    begin: Int64
    stop: Int64
    code: Int64

    def bounds(self) -> Int64:
        return np.concatenate([self.begin, self.stop])

    def paint(self, canvas: Int64, bounds: Int64) -> None:
        first, last = np.searchsorted(bounds, self.begin).tolist(), np.searchsorted(bounds, self.stop).tolist()
        for low, high, code in zip(first, last, self.code.tolist(), strict=True):
            canvas[low:high] = code


class _Codes:
    """Numbers of what a thread may do."""

    def __init__(self) -> None:
        self.whats: list[tuple[Reason, str | None, Evidence]] = []
        self._numbers: dict[tuple[Reason, str | None, Evidence], int] = {}

    def of(self, reason: Reason, name: str | None = None, evidence: Evidence = "trace") -> int:
        what = (reason, name, evidence)
        if what not in self._numbers:
            self._numbers[what] = len(self.whats)
            self.whats.append(what)
        return self._numbers[what]


def batch_parts(analysis: Analysis, rows: Int64) -> BatchParts:
    """The parts of batches, by their rows in the stage table; no row twice."""
    line, codes = _Line(analysis, rows), _Codes()
    host = codes.of(Reason.HOST)
    stages = _stage_layer(analysis, line, rows)
    doing = [
        _samples_layer(analysis, line, codes),
        _os_layer(analysis, line, codes),
        _lock_layer(analysis, line, codes),
    ]
    doing += [_call_layer(analysis, line, codes), _collection_layer(analysis, line, codes)]
    gpu = _operation_layers(analysis, line, codes)
    layers = [stages, *doing, *gpu]
    bounds = np.unique(np.concatenate([line.begin, line.stop, *(layer.bounds() for layer in layers)]))
    size = max(len(bounds) - 1, 0)
    path, what, on_gpu = (np.full(size, value, dtype=np.int64) for value in (-1, host, -1))
    stages.paint(path, bounds)
    for layer in doing:
        layer.paint(what, bounds)
    for layer in gpu:
        layer.paint(on_gpu, bounds)
    blocking = [number for number, one in enumerate(codes.whats) if one[0] in BLOCKING]
    others = [number for number, one in enumerate(codes.whats) if one[0] is Reason.OTHER_WORK]
    waits = np.isin(what, blocking)
    if (
        not analysis.trace.meta.has_all_calls
    ):  # calls that only wait are not in it; they do mostly for work of their own
        waits |= (what == host) & ~np.isin(on_gpu, others)
    what = np.where(waits & (on_gpu >= 0), on_gpu, what)
    groups = group_rows(path, what)
    keys = [
        PartKey(int(path[first]), *codes.whats[int(what[first])]) for first in groups.first.tolist()
    ]  # the order of the groups
    batch = np.searchsorted(line.begin, bounds[:-1], side="right") - 1
    start_ns = bounds[:-1] - line.begin[batch] + line.start_ns[batch]
    segments = Segments(batch, groups.code.astype(np.int64), start_ns, start_ns + np.diff(bounds))
    return BatchParts(rows, keys, segments)


def _stage_layer(analysis: Analysis, line: _Line, rows: Int64) -> _Layer:
    """The batches and all stages in them, by path; inner ones on top."""
    stages = analysis.stages
    place = np.full(len(stages) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    batch = place[analysis.stage_times.outer_batch]
    inside = np.flatnonzero(batch >= 0)
    inside = inside[np.lexsort((stages.start_ns[inside], stages.level[inside], batch[inside]))]
    begin, stop = line.place(batch[inside], stages.start_ns[inside], stages.end_ns[inside])
    return _Layer(begin, stop, stages.paths.code[inside].astype(np.int64))


def _layer(line: _Line, thread: Int64, start_ns: Int64, end_ns: Int64, code: Int64) -> _Layer:
    """Events of the batches' threads."""
    event, batch = events_inside(line.thread, line.start_ns, line.end_ns, thread, start_ns, end_ns)
    begin, stop = line.place(batch, start_ns[event], end_ns[event])
    return _Layer(begin, stop, code[event])


def _numbered(codes: _Codes, values: Integers, reason_of: dict[int, Reason], evidence: Evidence = "trace") -> Int64:
    """The code of each value; -1 where it has no reason."""
    found = np.full(len(values), -1, dtype=np.int64)
    for value in distinct(values):
        if (reason := reason_of.get(int(value))) is not None:
            found[values == value] = codes.of(reason, None, evidence)
    return found


def _nothing() -> _Layer:
    return _Layer(*(np.empty(0, dtype=np.int64),) * 3)


def _samples_layer(analysis: Analysis, line: _Line, codes: _Codes) -> _Layer:
    """Each sample stands for the time before it: what a compiler does, or what state the thread was in."""
    if analysis.host_probe is None:
        return _nothing()
    samples = analysis.host_probe.samples
    code = _numbered(codes, samples.state, {int(key): value for key, value in REASON_OF_STATE.items()}, "samples")
    compiler = compilers_of_stacks(samples.frames, samples.stacks)[samples.stack]
    for number in distinct(compiler[compiler >= 0]):
        code[compiler == number] = codes.of(Reason.COMPILE, COMPILERS[int(number)].name, "samples")
    at = np.flatnonzero(code >= 0)
    end_ns = samples.time_ns[at]
    return _layer(line, samples.thread[at], end_ns - samples.length_ns[at], end_ns, code[at])


def _os_layer(analysis: Analysis, line: _Line, codes: _Codes) -> _Layer:
    calls = analysis.trace.os_calls
    if calls is None:
        return _nothing()
    code = _numbered(codes, calls.kind, {int(key): value for key, value in REASON_OF_WAIT.items()})
    return _layer(line, calls.thread, calls.start_ns, calls.end_ns, code)


def host_events(analysis: Analysis, kind: HostEventKind) -> list[HostEvents]:
    """What holds intervals of a kind: the trace, and what was sampled beside it."""
    of_trace = analysis.trace.lock_events
    of_probe = None if analysis.host_probe is None else analysis.host_probe.events
    return [one for one in (of_trace, of_probe) if one is not None and (one.kind == kind).any()]


def _event_layer(analysis: Analysis, line: _Line, kind: HostEventKind, code: int) -> _Layer:
    found = [(one, one.kind == kind) for one in host_events(analysis, kind)]
    if not found:
        return _nothing()
    thread, start_ns, end_ns = (
        np.concatenate([column[at] for column, at in columns])
        for columns in (
            [(one.thread, at) for one, at in found],
            [(one.start_ns, at) for one, at in found],
            [(one.end_ns, at) for one, at in found],
        )
    )
    return _layer(line, thread, start_ns, end_ns, np.full(len(thread), code, dtype=np.int64))


def _lock_layer(analysis: Analysis, line: _Line, codes: _Codes) -> _Layer:
    return _event_layer(analysis, line, HostEventKind.GIL_WAITED, codes.of(Reason.INTERPRETER_LOCK))


def _collection_layer(analysis: Analysis, line: _Line, codes: _Codes) -> _Layer:
    return _event_layer(analysis, line, HostEventKind.COLLECTION, codes.of(Reason.COLLECTION))


def _call_layer(analysis: Analysis, line: _Line, codes: _Codes) -> _Layer:
    """CUDA calls; a call in a call lies on top."""
    api, names = analysis.trace.api, analysis.trace.names
    activity = CudaCalls(api, names).activity()
    groups = group_rows(api.name, activity)
    code = np.empty(len(groups), dtype=np.int64)
    for number, first in enumerate(groups.first.tolist()):
        kind = ACTIVITIES[int(activity[first])]
        function = names[int(api.name[first])] if kind in NAMED and api.name[first] >= 0 else None
        code[number] = codes.of(
            REASON_OF_ACTIVITY[kind], None if function is None else VERSION_OF_CALL.sub("", function)
        )
    return _layer(line, api.thread, api.start_ns, api.end_ns, code[groups.code])


def _operation_layers(analysis: Analysis, line: _Line, codes: _Codes) -> list[_Layer]:
    """GPU work of the process: on top what the batch's thread started in the batch."""
    trace, launches = analysis.trace, analysis.launches
    operations = trace.operations
    event, batch = events_inside(
        line.thread & PROCESS_MASK, line.start_ns, line.end_ns, operations.process, operations.start_ns,
        operations.end_ns,
    )  # fmt: skip
    call = np.full(len(operations), -1, dtype=np.int64)
    call[launches.operation] = launches.call
    of_event = call[event]
    called_ns = np.append(trace.api.start_ns, -1)[of_event]
    own = (of_event >= 0) & (np.append(trace.api.thread, -1)[of_event] == line.thread[batch])
    own &= (called_ns >= line.start_ns[batch]) & (called_ns < line.end_ns[batch])
    names, name = operation_names(trace)
    groups = group_rows(operations.kind, name)
    code = np.asarray(
        [
            codes.of(REASON_OF_OPERATION[GpuOperationKind(int(operations.kind[first]))], names[int(name[first])])
            for first in groups.first.tolist()
        ],
        dtype=np.int64,
    )
    begin, stop = line.place(batch, operations.start_ns[event], operations.end_ns[event])
    other = np.full(int((~own).sum()), codes.of(Reason.OTHER_WORK), dtype=np.int64)
    return [
        _Layer(begin[~own], stop[~own], other),
        _Layer(begin[own], stop[own], code[groups.code[event[own]]] if len(groups) else np.empty(0, dtype=np.int64)),
    ]


@dataclass(frozen=True)
class OwnWork:
    """GPU operations that batches started, by batch and name; aligned columns. `size_bytes` is that of copies."""

    batch: Int64
    name: Int64
    count: Int64
    gpu_ns: Int64
    size_bytes: Int64
    names: list[str]

    def of(self, names: Collection[str], batches: int) -> tuple[Int64, Int64, Int64]:
        """Of some names: count, ns and bytes of each of so many batches, 0 where it started none."""
        at = np.isin(self.name, [number for number, name in enumerate(self.names) if name in names])
        found = tuple(np.zeros(batches, dtype=np.int64) for _ in range(3))
        for column, values in zip(found, (self.count, self.gpu_ns, self.size_bytes), strict=True):
            np.add.at(column, self.batch[at], values[at])
        return found[0], found[1], found[2]


def own_work(analysis: Analysis, rows: Int64) -> OwnWork:
    """What the batches with these rows started on the GPU, on their threads."""
    trace, launches, line = analysis.trace, analysis.launches, _Line(analysis, rows)
    called_ns = trace.api.start_ns[launches.call]
    event, batch = events_inside(
        line.thread, line.start_ns, line.end_ns, trace.api.thread[launches.call], called_ns, called_ns
    )
    operation = launches.operation[event].astype(np.int64)
    names, name = operation_names(trace)
    groups = group_rows(batch, name[operation])
    length = (trace.operations.end_ns - trace.operations.start_ns)[operation]
    is_copy = trace.operations.kind[operation] == GpuOperationKind.MEMCPY
    has_details = len(trace.details) == len(trace.operations)
    size = trace.details.bytes[operation] if has_details else np.zeros(len(operation), dtype=np.int64)
    sums = [
        np.bincount(groups.code, weights=weights, minlength=len(groups)).astype(np.int64)
        for weights in (np.ones(len(operation)), length, np.where(is_copy & (size > 0), size, 0))
    ]
    count, gpu_ns, size_bytes = sums
    return OwnWork(batch[groups.first], name[operation][groups.first], count, gpu_ns, size_bytes, names)
