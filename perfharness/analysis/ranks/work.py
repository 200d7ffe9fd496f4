"""The part of one rank's trace that the comparison needs: batches, collectives, and the time before each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments import Segments, paint
from perfharness.analysis.segments.events import Calls
from perfharness.analysis.segments.paint import WAITS_FOR_GPU, Line
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.grouping import distinct, group_rows, occurrences, sum_by_code
from perfharness.model import conventions
from perfharness.model.activity import CODES
from perfharness.model.columns import Bool, Columns, Float64, Int64
from perfharness.model.result import Path
from perfharness.model.trace import GpuOperationKind, Trace
from perfharness.trace.names import by_name

COLLECTIVE_KERNEL = re.compile(r"(?<![A-Za-z0-9])(?:nccl(?:Dev)?Kernel_?([A-Za-z]*)|cross_device_(reduce))")
"""Kernels in which a rank waits for others: NCCL, RCCL, all-reduce of inference servers."""
BETWEEN_TWO = re.compile("send|recv|Generic", re.IGNORECASE)
"""Operations between two ranks, which do not wait for the last of all. NCCL implements all-to-all with them."""
OUTSIDE = -1
"""Path of time outside all ranges."""


@dataclass(frozen=True)
class RankBatches(Columns):
    """Outermost batches of a rank, ordered by start, on its trace's clock. `items` is NaN if not counted."""

    path: Int64
    loop: Int64
    index: Int64
    start_ns: Int64
    end_ns: Int64
    items: Float64
    warmup: Bool
    shared: Bool


@dataclass(frozen=True)
class Collectives(Columns):
    """The collectives of a rank in its batches, in order of their calls. `batch` is a place in the batches, `operation`
    and `members` in lists of `RankWork`, `stage` (around the call) and `own` (the innermost range at the call) in its
    paths. `is_awaited`: all wait for the last rank.
    """

    batch: Int64
    operation: Int64
    members: Int64
    start_ns: Int64
    end_ns: Int64
    stage: Int64
    own: Int64
    is_awaited: Bool


@dataclass(frozen=True)
class TimeBefore:
    """Time since the previous collective, by stage path; of the host, or of GPU work."""

    collective: Int64
    path: Int64
    ns: Int64


@dataclass(frozen=True)
class RankWork:
    """The work of one rank. `kind`: where its collectives were recorded; `reason`: why some may be missing. `host`
    excludes CUDA calls that wait for the GPU; `gpu` is by the stage that started the work. `between`: paths outside of
    batches.
    """

    kind: Literal["gpu", "host", "none"]
    paths: list[Path]
    operations: list[str]
    members: list[tuple[int, ...] | None]
    batches: RankBatches
    collectives: Collectives
    host: TimeBefore
    gpu: TimeBefore | None
    between: frozenset[int]
    reason: str | None

    def path(self, code: int) -> Path:
        """Names of a path; empty for time outside all ranges."""
        return () if code == OUTSIDE else self.paths[code]


@dataclass(frozen=True)
class _Found:
    """Collectives, in batches or not. `called_ns` on `thread`; `row`: the stage around the call; `own`: its range."""

    texts: list[str]
    members: list[tuple[int, ...] | None]
    thread: Int64
    called_ns: Int64
    start_ns: Int64
    end_ns: Int64
    row: Int64
    own: Int64
    is_awaited: Bool
    host: TimeBefore
    gpu: TimeBefore | None = None


def rank_work(analysis: Analysis) -> RankWork | None:
    """Extract what the comparison needs from one rank; None if it has no batch."""
    stages, times = analysis.stages, analysis.stage_times
    rows = times.outermost_batches()
    if not len(rows):
        return None
    rows = rows[np.argsort(stages.start_ns[rows], kind="stable")]
    stack = _Stack(analysis)
    found = _kernels(analysis, stack)
    kind: Literal["gpu", "host", "none"] = "gpu"
    if found is None or not len(found.start_ns):
        found = _host_calls(analysis, stack)
        kind = "host" if len(found.start_ns) else "none"
    batch = _batch_of(found, rows, analysis)
    inside = np.flatnonzero(batch >= 0)
    path = np.append(stages.paths.code.astype(np.int64), OUTSIDE)
    operations, members = list(dict.fromkeys(found.texts)), list(dict.fromkeys([None, *found.members]))
    operation = np.asarray([operations.index(text) for text in found.texts], dtype=np.int64)
    member = np.asarray([members.index(ranks) for ranks in found.members], dtype=np.int64)
    return RankWork(
        kind=kind,
        paths=[stages.paths.names(code) for code in range(len(stages.paths))],
        operations=operations,
        members=members,
        batches=RankBatches(
            path=path[rows],
            loop=times.loop[rows].astype(np.int64),
            index=stages.batch_index[rows].astype(np.int64),
            start_ns=stages.start_ns[rows],
            end_ns=stages.end_ns[rows],
            items=times.items[rows],
            warmup=times.warmup[rows],
            shared=stages.is_shared[rows],
        ),
        collectives=Collectives(
            batch=batch[inside],
            operation=operation[inside],
            members=member[inside],
            start_ns=found.start_ns[inside],
            end_ns=found.end_ns[inside],
            stage=path[found.row[inside]],
            own=path[found.own[inside]],
            is_awaited=found.is_awaited[inside],
        ),
        host=_by_path(found.host, inside, len(batch), path),
        gpu=None if found.gpu is None else _by_path(found.gpu, inside, len(batch), path),
        between=frozenset(distinct(stages.paths.code[times.batch < 0])) | {OUTSIDE},
        reason=None if kind != "none" else _why_unseen(analysis.trace),
    )


def _by_path(before: TimeBefore, inside: Int64, count: int, path: Int64) -> TimeBefore:
    """Sum the time, given by collective and stage row, by collective in a batch and path."""
    number = np.full(count, -1, dtype=np.int64)
    number[inside] = np.arange(len(inside))
    collective, at = number[before.collective], path[before.path]
    groups = group_rows(collective, at)
    total = sum_by_code(groups.code, before.ns, len(groups)).astype(np.int64)
    kept = groups.first[collective[groups.first] >= 0]
    return TimeBefore(collective[kept], at[kept], total[collective[groups.first] >= 0])


class _Stack:
    """The stage open on a thread, ignoring the ranges of collectives."""

    def __init__(self, analysis: Analysis) -> None:
        stages = analysis.stages
        self.is_call = _outermost_calls(stages, analysis.trace)
        self._stage: Int64 = np.append(np.arange(len(stages)), -1)
        """For each row, itself or the stage around the call that it is in."""
        in_call = stages.inside(self.is_call)
        for at in stages.rows_of_levels:
            self._stage[at] = np.where(in_call[at], self._stage[stages.parent[at]], at)
        self._analysis = analysis
        self._first_ns = stages.start_ns[analysis.stage_times.outermost_batches()].min()

    @cached_property
    def segments(self) -> Segments:
        """The division of all threads' time."""
        return paint(self._analysis, np.flatnonzero((self._analysis.stages.parent < 0) & ~self.is_call))

    def innermost(self, thread: Int64, time_ns: Int64) -> Int64:
        """The innermost range at each moment, a row of the stage table; -1: none."""
        if not len(time_ns):
            return np.empty(0, dtype=np.int64)
        return np.append(self.segments.row, -1)[self.segments.at("thread", thread, time_ns)].astype(np.int64)

    def at(self, thread: Int64, time_ns: Int64) -> Int64:
        """The same without calls of collectives, and what is inside them."""
        found: Int64 = self._stage[self.innermost(thread, time_ns)]
        return found

    def begins(self, group: Int64, begin_ns: Int64, end_ns: Int64) -> Int64:
        """Start of the work before each collective: end of the previous one of its thread or GPU, or first batch."""
        found: Int64 = np.minimum(begin_ns, self._first_ns)
        for one in np.unique(group).tolist():
            at = np.flatnonzero(group == one)
            at = at[np.argsort(begin_ns[at], kind="stable")]
            found[at[1:]] = np.maximum.accumulate(end_ns[at])[:-1]
        return found

    def time_before(self, thread: Int64, begins_ns: Int64, called_ns: Int64) -> TimeBefore:
        """Host time before calls, by stage, without CUDA calls that wait for the GPU."""
        if not len(called_ns):
            return TimeBefore(*(np.empty(0, dtype=np.int64),) * 3)
        segments, begins_ns = self.segments, np.minimum(begins_ns, called_ns)
        spans = Line(begins_ns, called_ns, thread).lay(segments.thread, segments.start_ns, segments.end_ns)
        length, segment = spans.stop - spans.begin, spans.event
        inside = sum_by_code(spans.place, length, len(called_ns)).astype(np.int64)
        outside = np.maximum(called_ns - begins_ns - inside, 0)
        counts = ~np.isin(segments.activity[segment], [CODES[one] for one in WAITS_FOR_GPU])
        return TimeBefore(
            np.concatenate([spans.place[counts], np.arange(len(called_ns))]),
            np.concatenate([self._stage[segments.row[segment[counts]]], np.full(len(called_ns), -1)]),
            np.concatenate([length[counts], outside]),
        )


def _outermost_calls(stages: StageTable, trace: Trace) -> Bool:
    """Mask of collective ranges that are not inside another one."""
    recorders = frozenset(stages.owners) if stages.from_recorder else frozenset()

    def is_communication(name: str) -> bool:
        parsed = conventions.parse_category(name, recorders)
        return (name if parsed is None else parsed[1]) == conventions.COMMUNICATION

    named = by_name(trace.names, trace.ranges.category[stages.index], is_communication).astype(np.bool_)
    wanted = named & ~stages.is_batch
    return np.asarray(wanted & ~np.append(stages.inside(wanted), False)[stages.parent], dtype=np.bool_)


def _host_calls(analysis: Analysis, stack: _Stack) -> _Found:
    """Ranges around collectives that started no GPU work."""
    stages = analysis.stages
    rows = np.flatnonzero(stack.is_call)
    rows = rows[analysis.table.projection.operation_count[stages.index[rows]] == 0]
    rows = rows[np.argsort(stages.start_ns[rows], kind="stable")]
    parsed = [conventions.parse_collective(stages.names[code]) for code in stages.name[rows].tolist()]
    thread, called, end = stages.thread[rows], stages.start_ns[rows], stages.end_ns[rows]
    begins = stack.begins(thread, called, end)
    return _Found(
        texts=[operation for operation, _, _ in parsed],
        members=[ranks for _, ranks, _ in parsed],
        thread=thread,
        called_ns=called,
        start_ns=np.minimum(np.maximum(called, begins), end),  # executed in order, as on a GPU stream
        end_ns=end,
        row=stack.at(thread, called),
        own=rows,
        is_awaited=np.asarray([not is_async and not BETWEEN_TWO.search(op) for op, _, is_async in parsed], np.bool_),
        host=stack.time_before(thread, begins, called),
    )


def _kernels(analysis: Analysis, stack: _Stack) -> _Found | None:
    """Kernels of collectives; None if the trace has no kernel names."""
    work, details, names = analysis.trace.operations, analysis.trace.details, analysis.trace.names
    if len(details) < len(work) or not len(work):
        return None
    thread, called = Calls(analysis).started
    named = by_name(names, details.name, lambda name: COLLECTIVE_KERNEL.search(name) is not None).astype(np.bool_)
    is_collective = named & (work.kind == GpuOperationKind.KERNEL)
    at = np.flatnonzero(is_collective & (thread >= 0))
    at = at[np.lexsort((work.start_ns[at], called[at]))]
    others = np.flatnonzero(~is_collective)
    device = work.device[at].astype(np.int64)
    begins = stack.begins(device, work.start_ns[at], work.end_ns[at])
    line = Line(np.minimum(begins, work.start_ns[at]), work.start_ns[at], device)
    spans = line.lay(work.device[others].astype(np.int64), work.start_ns[others], work.end_ns[others])
    operation = others[spans.event]
    texts = [_operation(names[code]) for code in details.name[at].tolist()]
    return _Found(
        texts=texts,
        members=[None] * len(at),
        thread=thread[at],
        called_ns=called[at],
        start_ns=work.start_ns[at],
        end_ns=work.end_ns[at],
        row=stack.at(thread[at], called[at]),
        own=stack.innermost(thread[at], called[at]),
        is_awaited=np.asarray([not BETWEEN_TWO.search(text) for text in texts], dtype=np.bool_),
        host=stack.time_before(thread[at], stack.begins(thread[at], called[at], called[at]), called[at]),
        gpu=TimeBefore(spans.place, stack.at(thread[operation], called[operation]), spans.stop - spans.begin),
    )


def _operation(kernel: str) -> str:
    found = COLLECTIVE_KERNEL.search(kernel)
    return (found and (found[1] or found[2])) or "Generic"


def _batch_of(found: _Found, batches: Int64, analysis: Analysis) -> Int64:
    """The outermost batch of each collective as an index of `batches`, -1 for none: that of the stage around it. For a
    stage outside batches (own thread, other recorder), the only batch open at that time.
    """
    stages, at_ns = analysis.stages, found.called_ns
    position = np.full(len(stages) + 1, -1, dtype=np.int64)
    position[batches] = np.arange(len(batches))
    by_stage = position[np.append(analysis.stage_times.outer_batch.astype(np.int64), -1)[found.row]]
    start, end = stages.start_ns[batches], stages.end_ns[batches]
    begun = np.searchsorted(start, at_ns, side="right")
    ended = np.searchsorted(np.sort(end), at_ns, side="left")
    last = np.maximum(begun - 1, 0)
    by_time = (begun - ended == 1) & (end[last] >= at_ns)
    return np.where((by_stage < 0) & by_time, last, by_stage)


def _why_unseen(trace: Trace) -> str | None:
    """Reason why the trace may lack collectives, or None."""
    if len(trace.details) < len(trace.operations):
        return "the names of kernels were not read"
    if (trace.operations.kind == GpuOperationKind.GRAPH).any():
        return "CUDA graphs were traced as a whole, which hides the kernels of collectives in them"
    if len(trace.operations):
        return None
    return (
        "the trace has no GPU work, and collectives on the host are recorded only if annotated (--annotate-collectives)"
    )


def batch_keys(work: RankWork, *, by_order: bool = False) -> Iterator[tuple[Path, int, int]]:
    """Path, index and occurrence of each batch, equal in ranks that process the same one. `by_order`: use the number of
    earlier batches of the path as index, for ranks with their own numbering.
    """
    batches = work.batches
    index = occurrences(batches.path) if by_order else batches.index
    again = occurrences(batches.path, index)
    for path, number, occurrence in zip(batches.path.tolist(), index.tolist(), again.tolist(), strict=True):
        yield work.paths[path], number, occurrence
