"""The slowest batches or requests next to a typical one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfharness.analysis.slowest import Slowest, SlowLoop, SlowRequest
from perfharness.analysis.slowest.results import GENERATOR, OUTSIDE, QUEUE, OperationBeside, Part, StageBeside
from perfharness.model.activity import DOING, Activity
from perfharness.model.host_samples import Frame
from perfharness.render.blocks import Block, Cell, Column, Columns, Details, Paragraph, Table, table_of
from perfharness.render.numbers import milliseconds
from perfharness.render.views.names import line_of

REASONS: dict[str, str] = {
    **{activity.value: text for activity, text in DOING.items()},
    Activity.UNKNOWN.value: "activity not recorded",
    QUEUE: "waiting before service began",
    GENERATOR: "sent late by the load generator",
    OUTSIDE: "time outside of the batch",
}
SLOWER = 0.02
"""Smallest excess of a slow batch over the typical time, as a share of it."""
SMALL = 0.02
"""Share of the difference below which the rest is not shown."""
MOST_OF_IT = 0.8
"""Share of a stage's difference at which its child is named instead."""

STAGES: Columns[StageBeside] = [
    (Column("stage"), lambda one: one.stage),
    (Column("ms", "ms"), lambda one: one.slow_ms),
    (Column("typical", "ms"), lambda one: one.typical_ms),
    (Column("difference", "ms"), lambda one: one.slow_ms - one.typical_ms),
]
OPERATIONS: Columns[OperationBeside] = [
    (Column("GPU operation"), lambda one: one.name),
    (Column("count", "count"), lambda one: one.count),
    (Column("typical", "number"), lambda one: one.typical_count),
    (Column("GPU ms", "ms"), lambda one: one.gpu_ms),
    (Column("typical", "ms"), lambda one: one.typical_gpu_ms),
    (Column("difference", "ms"), lambda one: one.gpu_ms - one.typical_gpu_ms),
    (Column("MB", "number"), lambda one: one.copied_bytes / 1e6),
    (Column("typical", "number"), lambda one: one.typical_copied_bytes / 1e6),
]

PartRow = tuple[str, float | None]
"""Difference and its size in ms."""


def slowest_view(result: Slowest, *, details: bool = False, folded: bool = False) -> list[Block]:
    """Table of each loop, and stages and GPU work of the slowest request.

    Args:
        details: show stages and GPU work of all slow requests.
        folded: fold them, on a page.
    """
    blocks: list[Block] = []
    for loop in result.loops:
        blocks += loop_blocks(loop)
        shown = loop.requests if details else loop.requests[:1]
        below = [block for request in shown for block in beside(request)]
        blocks += [Details("The slowest, stage by stage", below)] if below and folded else below
    return [*blocks, *(Paragraph(f"Not known: {note}", "note") for note in result.notes)]


def loop_blocks(loop: SlowLoop) -> list[Block]:
    """Slow requests of a loop, with reasons, and which are within the normal spread."""
    slow = [one for one in loop.requests if _is_slow(one)]
    if not slow:
        slowest = f"the slowest takes {milliseconds(loop.requests[0].ms)}" if loop.requests else "none was measured"
        return [Paragraph(f"{loop.loop}: no slow batch among {loop.batches:,}; {slowest}.")]
    usual = [str(request.index) for request in slow if request.verdict == "usual"]
    if not usual:
        return [_table(loop, slow)]
    which = "all of them" if len(usual) == len(slow) else ", ".join(usual)
    return [_table(loop, slow), Paragraph(f"Within the normal spread of this loop: {which}.", "note")]


def _is_slow(request: SlowRequest) -> bool:
    """Whether a request takes longer than a typical one; True if none is typical."""
    typical, more = request.typical, request.difference_ms
    return typical is None or more is None or more > SLOWER * typical.ms


def _table(loop: SlowLoop, slow: Sequence[SlowRequest]) -> Table:
    is_request = loop.measured_by == "latency"
    has_phase = any(request.phase for request in slow)
    columns = [
        Column("request" if is_request else "batch"),
        Column("process", drop=3),
        *([Column("phase", drop=5)] if has_phase else []),
        Column("ms", "ms"),
        Column("typical", "ms"),
        Column("slower by", "ms"),
        Column("reason"),
        Column("ms", "ms"),
    ]
    rows: list[list[Cell]] = []
    for request in slow:
        head: list[Cell] = [
            str(request.index),
            request.process,
            *([request.phase or ""] if has_phase else []),
            request.ms,
            None if request.typical is None else request.typical.ms,
            request.difference_ms,
        ]
        for place, (text, ms) in enumerate(part_rows(request)):
            rows.append([*(head if place == 0 else [""] * len(head)), text, "" if ms is None else ms])
    by = "latency (done - intended)" if is_request else "duration of the batch"
    processes = f" of {loop.processes} processes" if loop.processes > 1 else ""
    note = f"{loop.loop}: the slowest of {loop.batches:,} batches{processes}, by {by}, against the median of the others"
    return Table(f"slowest {loop.loop}", columns, rows, note)


def part_rows(request: SlowRequest) -> list[PartRow]:
    """Parts that made a request slow, or the stage with most of the difference if all are within their spread."""
    remarks = [request.reason]
    remarks += [None if request.error is None else f"error {request.error}"]
    remarks += [f"the GPU's clocks were reduced: {', '.join(request.throttled)}" if request.throttled else None]
    remarks += ["nothing in the trace explains it" if request.verdict == "unexplained" else None]
    rows: list[PartRow] = []
    if not request.parts and (largest := _largest(request)) is not None:
        rows.append((largest.stage, _longer(largest)))
    rows += [(part_text(part), part.ms) for part in request.parts]
    other = (request.small_ms or 0.0) + (request.rest_ms or 0.0)
    if request.parts and abs(other) > SMALL * abs(request.difference_ms or 0.0):
        rows.append(("other", other))
    remark = "; ".join(one for one in remarks if one)
    return [*rows, *([(remark, None)] if remark or not rows else [])]


def _largest(request: SlowRequest) -> StageBeside | None:
    """Innermost stage with most of the difference, or None if no stage took longer."""
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


def part_text(part: Part) -> str:
    """Stage, reason, location and number of samples."""
    text = "" if part.stage is None else f"{part.stage}: "
    text += REASONS[part.reason] + ("" if part.name is None else f", {part.name}")
    if (where := part.where) is not None:
        text += f" in {where.function}"
        text += f" ({line_of(Frame(where.function, where.file, where.line))})" if where.file else ""
    return text + ("" if part.samples is None else f", {part.samples} samples")


def beside(request: SlowRequest) -> Iterator[Block]:
    """Stages and GPU operations of a request next to those of a typical one."""
    typical = request.typical
    if typical is None:
        return
    about = f"Batch {request.index} of {request.process} against the median of {typical.batches} others"
    if request.stages:
        yield table_of(f"stages of {request.index}", STAGES, request.stages, about)
    if request.operations:
        note = "" if request.stages else about
        yield table_of(f"GPU operations of {request.index}", OPERATIONS, request.operations, note)
