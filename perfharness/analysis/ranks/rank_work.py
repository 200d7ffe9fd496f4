"""What one rank did, as far as other ranks have to know: its batches, its collectives, and its work between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.ranks.stack_line import StackLine
from perfharness.analysis.stages.roles import StageTable
from perfharness.analysis.timeline.busy import BusyLine, expand
from perfharness.analysis.timeline.cuda_calls import ACTIVITIES, CudaCalls
from perfharness.analysis.timeline.grouping import group_rows, rows_of_levels
from perfharness.analysis.timeline.intervals import NO_PARENT, Nesting, nest
from perfharness.model import conventions
from perfharness.model.diagnosis import HostActivity
from perfharness.model.result import Float64, Path
from perfharness.model.trace import Bool, GpuOperationKind, Int64, Integers, Trace
from perfharness.trace.names import by_name

COLLECTIVE_KERNEL = re.compile(
    r"(?<![A-Za-z0-9])(?:nccl(?:Dev)?Kernel_?(?P<nccl>[A-Za-z]*)"  # NCCL, RCCL: ncclDevKernel_AllReduce_Sum_f32_RING_LL
    r"|(?:one_shot|two_shot|multimem)_(?P<symmetric>all_reduce|all_gather|reduce_scatter)"  # PyTorch's symmetric memory
    r"|cross_device_(?P<custom>reduce))"  # the all-reduce of inference servers
)
"""Kernels in which a rank waits for the others; the group that matches is the operation."""

POINT_TO_POINT = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list", "SendRecv"}
)
"""Operations of two ranks: time in communication, but no collective in which all arrive."""

UNNAMED_KERNELS = frozenset({"SendRecv", "Generic"})
"""Kernels that several operations are made of: messages, and an exchange of all with all. The range around the call
tells, where there is one."""

OUTSIDE = -1
"""Path of time in no range."""


@dataclass(frozen=True)
class RankBatches:
    """The outermost batches of a rank, in order of start. `path` indexes `RankWork.paths`; batches of one `loop` follow
    one another; times are the trace's own.

    `items` is NaN where a batch counted none.
    """

    path: Int64
    loop: Int64
    index: Int64
    start_ns: Int64
    end_ns: Int64
    items: Float64
    warmup: Bool
    shared: Bool

    def __len__(self) -> int:
        return len(self.path)


@dataclass(frozen=True)
class Collectives:
    """The collectives of a rank in its batches, in the order in which it called them; times are the trace's own.

    `batch` indexes the batches, `operation` and `members` the lists of `RankWork`, `stage` (the innermost stage around
    the call) and `own` (the range of the call itself, -1: a kernel) its paths. `before_ns`: from the end of the one
    before (on its thread, or its GPU) to its start. `is_awaited`: all ranks take part, and none goes on before the last
    has come.
    """

    batch: Int64
    operation: Int64
    members: Int64
    start_ns: Int64
    end_ns: Int64
    before_ns: Int64
    stage: Int64
    own: Int64
    is_awaited: Bool

    def __len__(self) -> int:
        return len(self.batch)


@dataclass(frozen=True)
class WorkBefore:
    """What a rank did between a collective and the one before it: nanoseconds by collective and path of the stage."""

    collective: Int64
    path: Int64
    spent_ns: Int64


@dataclass(frozen=True)
class RankWork:
    """What one rank did. `kind`: where its collectives were seen: kernels on the GPU, ranges on the host, or nowhere.

    `host`: time of the host between two calls, blocking CUDA calls left out. `gpu`: of its operations between two
    collectives, by the stage that started them; `gpu_idle_ns`: time without any, a value a collective; both None for
    collectives of the host.
    """

    kind: Literal["gpu", "host", "none"]
    paths: list[Path]
    operations: list[str]
    members: list[tuple[int, ...] | None]
    batches: RankBatches
    collectives: Collectives
    host: WorkBefore
    gpu: WorkBefore | None
    gpu_idle_ns: Int64 | None
    between: frozenset[int]
    """Paths of ranges that are around batches, or in none: time there is between batches."""

    reason: str | None
    """Why collectives may have been missed; None where they would have been seen."""


def rank_work(analysis: Analysis) -> RankWork | None:
    """What the comparison of ranks needs of one rank; None where it has no batch."""
    stages, times = analysis.stages, analysis.stage_times
    rows = times.outermost_batches()
    if not len(rows):
        return None
    rows = rows[np.argsort(stages.start_ns[rows], kind="stable")]
    is_call = _outermost_calls(stages, analysis.trace)
    lines = _Lines(stages, is_call)
    found = _kernels(analysis, lines)
    kind: Literal["gpu", "host", "none"] = "gpu"
    if found is None or not len(found.start_ns):
        found = _host_calls(analysis, lines, np.flatnonzero(is_call))
        kind = "host" if len(found.start_ns) else "none"
    batch = _batch_of(found.row, found.at_ns, rows, analysis)
    inside = np.flatnonzero(batch >= 0)
    number = np.full(len(batch), -1, dtype=np.int64)
    number[inside] = np.arange(len(inside))
    path = np.append(stages.paths.code.astype(np.int64), OUTSIDE)
    return RankWork(
        kind=kind,
        paths=[stages.paths.names(code) for code in range(len(stages.paths))],
        operations=found.operations,
        members=found.members,
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
            operation=found.operation[inside],
            members=found.member[inside],
            start_ns=found.start_ns[inside],
            end_ns=found.end_ns[inside],
            before_ns=found.before_ns[inside],
            stage=path[found.row[inside]],
            own=path[found.own[inside]],
            is_awaited=found.is_awaited[inside],
        ),
        host=_numbered(found.host, number, path),
        gpu=None if found.gpu is None else _numbered(found.gpu, number, path),
        gpu_idle_ns=None if found.gpu_idle_ns is None else found.gpu_idle_ns[inside],
        between=frozenset(np.unique(stages.paths.code[times.batch < 0]).tolist()) | {OUTSIDE},
        reason=None if kind != "none" else _why_unseen(analysis),
    )


@dataclass(frozen=True)
class _Found:
    """Collectives of a rank, in batches or not, in order of their calls; `row` is the innermost stage around a call."""

    operations: list[str]
    members: list[tuple[int, ...] | None]
    operation: Int64
    member: Int64
    at_ns: Int64
    """When it was called."""

    start_ns: Int64
    end_ns: Int64
    before_ns: Int64
    row: Int64
    own: Int64
    is_awaited: Bool
    host: tuple[Int64, Int64, Int64]
    """Collective, stage (or -1) and nanoseconds."""

    gpu: tuple[Int64, Int64, Int64] | None = None
    gpu_idle_ns: Int64 | None = None


def _numbered(spent: tuple[Int64, Int64, Int64], number: Int64, path: Int64) -> WorkBefore:
    """By collective in a batch and path, each once."""
    collective, row, spent_ns = number[spent[0]], path[spent[1]], spent[2]
    kept = collective >= 0
    collective, at, spent_ns = collective[kept], row[kept], spent_ns[kept]
    groups = group_rows(collective, at)
    total = np.bincount(groups.code, weights=spent_ns, minlength=len(groups)).astype(np.int64)
    return WorkBefore(collective[groups.first], at[groups.first], total)


class _Lines:
    """The innermost stage at each moment of each thread (and lane), and the call of a collective that is open."""

    def __init__(self, stages: StageTable, is_call: Bool) -> None:
        self._start, self._end = stages.start_ns, stages.end_ns
        line = group_rows(stages.thread, stages.lane)
        self.of_row = line.code.astype(np.int64)
        self.nesting: Nesting = nest(stages.start_ns, stages.end_ns, self.of_row)
        self._thread = stages.thread[line.first]
        self._lane = stages.lane[line.first]
        self._is_stage = ~self._with_all_inside(is_call)
        self._is_call = is_call
        self._made: dict[int, StackLine] = {}

    def _with_all_inside(self, chosen: Bool) -> Bool:
        inside: Bool = chosen.copy()
        for at in rows_of_levels(self.nesting.level)[1:]:
            inside[at] |= inside[self.nesting.parent[at]]
        return inside

    def line(self, number: int) -> StackLine:
        """One line, as `of_row` numbers them."""
        if number not in self._made:
            rows = np.flatnonzero((self.of_row == number) & self._is_stage)
            self._made[number] = StackLine(rows, self._start, self._end, self.nesting.parent, self.nesting.level)
        return self._made[number]

    def of_thread(self, thread: int) -> StackLine:
        """The line of a thread's own stack."""
        return self.line(self._own(thread))

    def of_calls(self, rows: Int64) -> Int64:
        """The line that each call was made on: its own, or where nothing is around it on a lane, that of its thread,
        on which C++ code called it and went on.
        """
        found: Int64 = self.of_row[rows].copy()
        alone = (self._lane[found] > 0) & (self.nesting.parent[rows] == NO_PARENT)
        for number in np.unique(found[alone]).tolist():
            own = self._own(int(self._thread[number]))
            if own >= 0:
                found[alone & (self.of_row[rows] == number)] = own
        return found

    def calls_of_thread(self, thread: int) -> StackLine:
        """Which call of a collective is open on a thread's own stack."""
        rows = np.flatnonzero((self.of_row == self._own(thread)) & self._is_call)
        alone = np.full(len(self._start), NO_PARENT, dtype=np.int64)
        return StackLine(rows, self._start, self._end, alone, np.zeros(len(alone), dtype=np.int64))

    def _own(self, thread: int) -> int:
        at = np.flatnonzero((self._thread == thread) & (self._lane == 0))
        return int(at[0]) if len(at) else -1


def _outermost_calls(stages: StageTable, trace: Trace) -> Bool:
    """Ranges of the category of collectives that lie in no other such range."""
    codes = trace.ranges.category[stages.index]
    recorders = frozenset(stages.owners) if stages.from_recorder else frozenset()

    def is_communication(name: str) -> bool:
        parsed = conventions.parse_category(name, recorders)
        return (name if parsed is None else parsed[1]) == conventions.COMMUNICATION

    is_named = np.asarray([*(is_communication(name) for name in trace.names), False], dtype=np.bool_)
    wanted: Bool = is_named[codes] & ~stages.is_batch
    if not wanted.any():
        return wanted
    inside = np.zeros(len(stages), dtype=np.bool_)
    for at in stages.rows_of_levels[1:]:
        above = stages.parent[at]
        inside[at] = wanted[above] | inside[above]
    return np.asarray(wanted & ~inside, dtype=np.bool_)


def _host_calls(analysis: Analysis, lines: _Lines, rows: Int64) -> _Found:
    """Ranges around calls of collectives that started no work of a GPU."""
    stages = analysis.stages
    on_gpu = analysis.table.projection.operation_count[stages.index[rows]] > 0
    rows = rows[~on_gpu]
    rows = rows[np.argsort(stages.start_ns[rows], kind="stable")]
    parsed = [conventions.parse_collective(stages.names[code]) for code in np.unique(stages.name[rows]).tolist()]
    operations = list(dict.fromkeys(operation for operation, _, _ in parsed))
    members = list(dict.fromkeys([None, *(ranks for _, ranks, _ in parsed)]))
    which = np.searchsorted(np.unique(stages.name[rows]), stages.name[rows])
    waits = [not is_async and operation not in POINT_TO_POINT for operation, _, is_async in parsed]
    start, end = stages.start_ns[rows], stages.end_ns[rows]
    row, before_ns = np.full(len(rows), NO_PARENT, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    came = start.copy()  # a call that goes on meanwhile is first: backends do them in order, as a stream of a GPU
    spent: list[tuple[Int64, Int64, Int64]] = []
    of_call = lines.of_calls(rows)
    for number in np.unique(of_call).tolist():
        at = np.flatnonzero(of_call == number)
        line = lines.line(number)
        row[at] = line.at(start[at])
        begins = np.r_[_loop_begins(analysis, start[at[:1]]), np.maximum.accumulate(end[at])[:-1]]
        came[at] = np.minimum(np.maximum(start[at], begins), end[at])
        before_ns[at] = came[at] - np.minimum(begins, came[at])
        stretch, inner, spent_ns = line.times_within(begins, start[at])
        spent.append((at[stretch], inner, spent_ns))
    return _Found(
        operations=operations,
        members=members,
        operation=np.asarray([operations.index(operation) for operation, _, _ in parsed], dtype=np.int64)[which],
        member=np.asarray([members.index(ranks) for _, ranks, _ in parsed], dtype=np.int64)[which],
        at_ns=start,
        start_ns=came,
        end_ns=end,
        before_ns=before_ns,
        row=row,
        own=rows,
        is_awaited=np.asarray(waits, dtype=np.bool_)[which],
        host=_joined(spent),
    )


def _joined(parts: list[tuple[Int64, Int64, Int64]]) -> tuple[Int64, Int64, Int64]:
    nothing = np.empty(0, dtype=np.int64)
    first, second, third = zip((nothing, nothing, nothing), *parts, strict=True)
    return np.concatenate(first), np.concatenate(second), np.concatenate(third)


def _loop_begins(analysis: Analysis, first: Int64) -> Int64:
    """Where the work before the first collective begins: with the first batch, where that was before."""
    start = analysis.stages.start_ns[analysis.stage_times.outermost_batches()].min(initial=np.iinfo(np.int64).max)
    begins: Int64 = np.minimum(first, start)
    return begins


def _kernels(analysis: Analysis, lines: _Lines) -> _Found | None:
    """Kernels of collectives; None where the trace does not name its kernels."""
    trace, launches = analysis.trace, analysis.launches
    operations, details = trace.operations, trace.details
    if len(details) < len(operations) or not len(operations):
        return None
    names = by_name(trace.names, details.name, lambda name: COLLECTIVE_KERNEL.search(name) is not None)
    is_collective = np.asarray(names, dtype=np.bool_) & (operations.kind == GpuOperationKind.KERNEL)
    call_of = np.full(len(operations), -1, dtype=np.int64)
    call_of[launches.operation] = launches.call
    at = np.flatnonzero(is_collective & (call_of >= 0))
    at = at[np.lexsort((operations.start_ns[at], trace.api.start_ns[call_of[at]]))]
    call = call_of[at]
    called, thread = trace.api.start_ns[call], trace.api.thread[call]
    row, around = np.full(len(at), NO_PARENT, dtype=np.int64), np.full(len(at), NO_PARENT, dtype=np.int64)
    spent: list[tuple[Int64, Int64, Int64]] = []
    activity = CudaCalls(trace.api, trace.names).activity() == ACTIVITIES.index(HostActivity.SYNCHRONIZE)
    for number in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == number)
        line = lines.of_thread(number)
        row[mine] = line.at(called[mine])
        around[mine] = lines.calls_of_thread(number).at(called[mine])
        begins = np.r_[_loop_begins(analysis, called[mine[:1]]), called[mine[:-1]]]
        waits = np.flatnonzero(activity & (trace.api.thread == number))
        blocked = BusyLine(trace.api.start_ns[waits], trace.api.end_ns[waits])
        stretch, inner, spent_ns = line.times_within(begins, called[mine], blocked)
        spent.append((mine[stretch], inner, spent_ns))
    texts = _operations_of(analysis, details.name[at], around)
    kinds = list(dict.fromkeys(texts))
    operation = np.asarray([kinds.index(text) for text in texts], dtype=np.int64)
    gpu, idle_ns, before_ns = _gpu_before(analysis, lines, at, is_collective, call_of)
    return _Found(
        operations=kinds,
        members=[None],
        operation=operation,
        member=np.zeros(len(at), dtype=np.int64),
        at_ns=called,
        start_ns=operations.start_ns[at],
        end_ns=operations.end_ns[at],
        before_ns=before_ns,
        row=row,
        own=np.full(len(at), NO_PARENT, dtype=np.int64),
        is_awaited=np.asarray([text not in POINT_TO_POINT for text in kinds] or [], dtype=np.bool_)[operation],
        host=_joined(spent),
        gpu=gpu,
        gpu_idle_ns=idle_ns,
    )


def _operations_of(analysis: Analysis, kernel: Integers, around: Int64) -> list[str]:
    """The operation of each kernel, by its name; of a kernel that several are made of, by the call around it."""
    names, stages = analysis.trace.names, analysis.stages
    by_kernel = {code: _operation_of(names[code]) for code in np.unique(kernel).tolist()}
    found = []
    for code, row in zip(kernel.tolist(), around.tolist(), strict=True):
        operation = by_kernel[code]
        if operation in UNNAMED_KERNELS and row >= 0:
            operation = conventions.parse_collective(stages.names[int(stages.name[row])])[0]
        found.append(operation)
    return found


def _operation_of(kernel: str) -> str:
    found = COLLECTIVE_KERNEL.search(kernel)
    assert found is not None, "only such kernels are taken"
    return found[found.lastgroup or 0] or "Generic"


def _gpu_before(
    analysis: Analysis, lines: _Lines, at: Int64, is_collective: Bool, call_of: Int64
) -> tuple[tuple[Int64, Int64, Int64], Int64, Int64]:
    """Work of the GPU between a collective and the one before it on the same GPU, by stage; how long it had none; and
    how long that was.
    """
    trace = analysis.trace
    operations, api = trace.operations, trace.api
    idle_ns, before_ns = np.zeros(len(at), dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    parts: list[tuple[Int64, Int64, Int64]] = []
    others = np.flatnonzero(~is_collective)
    for device in np.unique(operations.device[at]).tolist():
        mine = np.flatnonzero(operations.device[at] == device)
        mine = mine[np.argsort(operations.start_ns[at[mine]], kind="stable")]
        start, end = operations.start_ns[at[mine]], operations.end_ns[at[mine]]
        begins = np.r_[_loop_begins(analysis, start[:1]), np.maximum.accumulate(end)[:-1]]
        begins = np.minimum(begins, start)
        work = others[operations.device[others] == device]
        begun, ended = operations.start_ns[work], operations.end_ns[work]
        before_ns[mine] = start - begins
        idle_ns[mine] = before_ns[mine] - BusyLine(begun, ended).within(begins, start)
        first, last = np.searchsorted(start, begun, side="right"), np.searchsorted(begins, ended, side="left")
        window, operation = expand(first, np.maximum(last, first))
        length = np.minimum(start[window], ended[operation]) - np.maximum(begins[window], begun[operation])
        kept = length > 0
        parts.append((mine[window[kept]], work[operation[kept]], length[kept]))
    collective, operation, spent_ns = _joined(parts)
    row = np.full(len(operation), NO_PARENT, dtype=np.int64)
    call = call_of[operation]
    known = np.flatnonzero(call >= 0)
    for number in np.unique(api.thread[call[known]]).tolist():
        here = known[api.thread[call[known]] == number]
        row[here] = lines.of_thread(number).at(api.start_ns[call[here]])
    return (collective, row, spent_ns), idle_ns, before_ns


def _batch_of(row: Int64, at_ns: Int64, batches: Int64, analysis: Analysis) -> Int64:
    """The outermost batch of each collective, by position in `batches`; -1: in none.

    By the stage around it; where that is in none (a thread of its own, another recorder), by time, where only one batch
    was open.
    """
    stages, times = analysis.stages, analysis.stage_times
    position = np.full(len(stages) + 1, -1, dtype=np.int64)
    position[batches] = np.arange(len(batches))
    outer = np.append(times.outer_batch.astype(np.int64), -1)[row]
    found = position[outer]
    start, end = stages.start_ns[batches], stages.end_ns[batches]
    begun = np.searchsorted(start, at_ns, side="right")
    ended = np.searchsorted(np.sort(end), at_ns, side="left")
    last = np.maximum(begun - 1, 0)
    by_time = (begun - ended == 1) & (end[last] >= at_ns)
    return np.where((found < 0) & by_time, last, found)


def _why_unseen(analysis: Analysis) -> str | None:
    """Why there may be collectives that the trace does not show; None where it would show them."""
    trace = analysis.trace
    operations = trace.operations
    if len(trace.details) < len(operations):
        return "the names of kernels were not read"
    if (operations.kind == GpuOperationKind.GRAPH).any():
        return "CUDA graphs were traced as a whole, which hides the kernels of collectives in them"
    if len(operations):
        return None
    return (
        "the trace has no work of a GPU, and calls of collectives on the host are recorded only where they are "
        "annotated (--annotate-collectives)"
    )


def occurrences(*keys: Int64) -> Int64:
    """How often a row's keys came before, in order of the rows."""
    code = group_rows(*keys).code.astype(np.int64)
    order = np.argsort(code, kind="stable")
    in_order = code[order]
    first = np.r_[True, in_order[1:] != in_order[:-1]][: len(in_order)]
    begins = np.flatnonzero(first)
    counted = np.arange(len(code)) - np.repeat(begins, np.diff(np.r_[begins, len(code)]))
    found = np.empty(len(code), dtype=np.int64)
    found[order] = counted
    return found


def batch_keys(work: RankWork) -> Iterator[tuple[Path, int, int]]:
    """Path, index and occurrence of each batch: equal in ranks that process the same ones."""
    batches = work.batches
    again = occurrences(batches.path, batches.index)
    for path, index, occurrence in zip(batches.path.tolist(), batches.index.tolist(), again.tolist(), strict=True):
        yield work.paths[path], index, occurrence


def keys_by_order(work: RankWork) -> Iterator[tuple[Path, int, int]]:
    """The same of ranks that number their batches each for itself: path, and how many of it came before."""
    before = occurrences(work.batches.path)
    for path, number in zip(work.batches.path.tolist(), before.tolist(), strict=True):
        yield work.paths[path], number, 0
