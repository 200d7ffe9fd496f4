"""The slowest batches, or requests, beside a typical one."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.slowest import Slowest, SlowLoop, SlowRequest
from perfharness.analysis.slowest.results import GENERATOR, OUTSIDE, QUEUE, OperationBeside, Part, StageBeside
from perfharness.model.activity import Activity
from perfharness.model.host_samples import Frame
from perfharness.render.blocks import Block, Cell, Column, Columns, Details, Paragraph, Table, table_of
from perfharness.render.numbers import percent
from perfharness.render.places import place_text

REASONS: dict[str, str] = {
    QUEUE: "waited before service began",
    GENERATOR: "the load generator sent it late",
    OUTSIDE: "time outside of the batch",
    Activity.COMPUTE: "computed",
    Activity.NO_CPU: "waited for a free CPU",
    Activity.GIL: "waited for the interpreter lock",
    Activity.LOCK: "waited for another thread (a lock, a queue)",
    Activity.SLEEP: "slept",
    Activity.FILE: "waited for a file",
    Activity.NETWORK: "waited for the network",
    Activity.PROCESS: "waited for another process",
    Activity.GC: "garbage collection",
    Activity.COMPILE: "compiled or loaded code",
    Activity.LAUNCH: "CUDA calls that start work",
    Activity.COPY: "CUDA calls that copy",
    Activity.SYNC: "waited for the GPU",
    Activity.ALLOC: "CUDA allocated or freed memory",
    Activity.OTHER: "another call",
    Activity.UNKNOWN: "not recorded what it did",
}
NEARLY_ALL = 0.95
MOST_OF_IT = 0.8
"""Of a stage's difference: the stage inside it that has so much is named instead."""

STAGES: Columns[StageBeside] = [
    (Column("stage"), lambda one: one.stage),
    (Column("ms", "ms"), lambda one: one.slow_ms),
    (Column("typical", "ms"), lambda one: one.typical_ms),
    (Column("more", "ms"), lambda one: one.slow_ms - one.typical_ms),
]
OPERATIONS: Columns[OperationBeside] = [
    (Column("GPU operation"), lambda one: one.name),
    (Column("count", "count"), lambda one: one.count),
    (Column("typical", "number"), lambda one: one.typical_count),
    (Column("GPU ms", "ms"), lambda one: one.gpu_ms),
    (Column("typical", "ms"), lambda one: one.typical_gpu_ms),
    (Column("more", "ms"), lambda one: one.gpu_ms - one.typical_gpu_ms),
    (Column("MB", "number"), lambda one: one.copied_bytes / 1e6),
    (Column("typical", "number"), lambda one: one.typical_copied_bytes / 1e6),
]

PartRow = tuple[str, float | None, float | None]
"""What was different, ms, and what is usual."""


def slowest_view(result: Slowest, *, details: bool = False, folded: bool = False) -> list[Block]:
    """A table of each loop, and the slowest request's stages and GPU work.

    Args:
        details: those of all requests.
        folded: on a page.
    """
    blocks: list[Block] = []
    for loop in result.loops:
        blocks += loop_blocks(loop)
        shown = loop.requests if details else loop.requests[:1]
        below = [block for request in shown for block in beside(request)]
        blocks += [Details("The slowest, stage by stage", below)] if below and folded else below
    return [*blocks, *(Paragraph(f"Not known: {note}", "note") for note in result.notes)]


def loop_blocks(loop: SlowLoop) -> list[Block]:
    """Its slowest requests, the parts that made them slow, and which of them need no reason."""
    usual = [str(request.index) for request in loop.requests if request.verdict == "usual"]
    if not usual:
        return [_table(loop)]
    which = "all of them" if len(usual) == len(loop.requests) else ", ".join(usual)
    doubt = f"Batches of this loop vary a lot: such slow ones are expected by chance ({which})."
    return [_table(loop), Paragraph(doubt, "note")]


def _table(loop: SlowLoop) -> Table:
    is_request = loop.measured_by == "latency"
    has_phase = any(request.phase for request in loop.requests)
    columns = [
        Column("request" if is_request else "batch"),
        Column("process", drop=3),
        *([Column("phase", drop=5)] if has_phase else []),
        Column("ms", "ms"),
        Column("typical", "ms"),
        Column("of", "count", "batches that the typical one is the median of", drop=4),
        Column("more", "ms"),
        Column("what made it slow"),
        Column("by", "ms"),
        Column("usual", "ms", "a difference of that part up to this is usual", drop=2),
    ]
    rows: list[list[Cell]] = []
    for request in loop.requests:
        typical = request.typical
        head: list[Cell] = [
            str(request.index),
            request.process,
            *([request.phase or ""] if has_phase else []),
            request.ms,
            None if typical is None else typical.ms,
            None if typical is None else typical.batches,
            request.difference_ms,
        ]
        for place, (text, ms, usual) in enumerate(part_rows(request)):
            rows.append([*(head if place == 0 else [""] * len(head)), text, _or_blank(ms), _or_blank(usual)])
    by = "latency (done - intended)" if is_request else "duration of the batch"
    processes = f" of {loop.processes} processes" if loop.processes > 1 else ""
    note = f"{loop.loop}: the slowest of {loop.batches:,} batches{processes}, by {by}; ms"
    return Table(f"slowest {loop.loop}", columns, rows, note)


def _or_blank(value: float | None) -> Cell:
    return "" if value is None else value


def part_rows(request: SlowRequest) -> list[PartRow]:
    """The parts that made it slow; where none is beyond its usual spread, the stage that has most of the difference."""
    remarks = [request.reason]
    remarks += [None if request.error is None else f"error {request.error}"]
    remarks += [f"the GPU's clocks were reduced: {', '.join(request.throttled)}" if request.throttled else None]
    remarks += ["nothing in the trace explains it" if request.verdict == "unexplained" else None]
    rows: list[PartRow] = []
    if not request.parts and (largest := _largest(request)) is not None:
        rows.append(_of_stage(largest, request.difference_ms))
    rows += [(part_text(part), part.ms, part.usual_ms) for part in request.parts]
    if request.parts and request.small_ms is not None and request.rest_ms is not None:
        rows.append(("other", request.small_ms + request.rest_ms, None))
    remark = "; ".join(one for one in remarks if one)
    return [*rows, *([(remark, None, None)] if remark or not rows else [])]


def _largest(request: SlowRequest) -> StageBeside | None:
    """The innermost stage with most of the difference; None where no stage took longer."""
    by_size = sorted(request.stages, key=_longer, reverse=True)
    if not by_size or _longer(by_size[0]) <= 0:
        return None
    found = by_size[0]
    for one in by_size[1:]:
        if one.stage.startswith(f"{found.stage}/") and _longer(one) >= MOST_OF_IT * _longer(found):
            found = one
    return found


def _longer(one: StageBeside) -> float:
    return one.slow_ms - one.typical_ms


def _of_stage(one: StageBeside, difference_ms: float | None) -> PartRow:
    """The stage, and its part of the difference."""
    if not difference_ms or difference_ms <= 0:
        return one.stage, _longer(one), None
    share = _longer(one) / difference_ms
    text = "all of it" if share >= NEARLY_ALL else f"{percent(share)} of it"
    return f"{one.stage}, {text}", _longer(one), None


def part_text(part: Part) -> str:
    """Stage, reason, name, line and number of samples."""
    name = "" if part.name is None else f", {part.name}"
    more = [] if part.where is None else [place_text(Frame(part.where.function, part.where.file, part.where.line))]
    more += [] if part.samples is None else [f"{part.samples} samples"]
    place = "" if part.stage is None else f"{part.stage}: "
    return f"{place}{REASONS[part.reason]}{name}" + (f" ({'; '.join(more)})" if more else "")


def beside(request: SlowRequest) -> Iterator[Block]:
    """Its stages and GPU operations beside those of a typical batch."""
    typical = request.typical
    if typical is None:
        return
    of = f"{request.index} of {request.process} beside the median of {typical.batches} batches"
    about = f"{of}; batch {typical.nearest_batch} is near it"
    if request.stages:
        yield table_of(f"stages of {request.index}", STAGES, request.stages, about)
    if request.operations:
        note = "" if request.stages else about
        yield table_of(f"GPU operations of {request.index}", OPERATIONS, request.operations, note)
