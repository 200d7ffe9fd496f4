"""The slowest requests beside the typical one, as a section of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfharness.analysis.slowest.results import SlowLoop, SlowRequest
from perfharness.render.charts.drawing import Picture
from perfharness.render.charts.report import timeline_picture
from perfharness.render.report.document import Block, Cell, Chart, Column, Details, Items, Paragraph, Section, Table
from perfharness.render.terminal.slowest import common_text, part_text, remark_text
from perfharness.runs.report.model import RunReport, SlowestReport

ABOUT = (
    "Each beside the median of the batches that are like it. Parts sum to the difference, to the nanosecond; a part is "
    "named where it is beyond what is usual for it. `perfharness analyze --slowest N` has more of them, with the "
    "stages and GPU operations of each."
)

HINT = (
    "Drag to move, Shift and the wheel to zoom, double-click to see all again; `perfharness export` writes all batches."
)
"""Below a timeline."""


def slowest_section(run: RunReport, number: int) -> Section | None:
    """What was different in the slowest requests; of a load test that has none of it, why.

    Args:
        number: of the run on the page.
    """
    title = "The slowest requests" if run.load is not None else "The slowest batches"
    found = run.slowest
    if found is None:
        if run.load is None or run.slowest_reason is None:
            return None
        return Section(title, [Paragraph(f"What was different in them is not known: {run.slowest_reason}.", "note")])
    loops = [
        loop
        for loop in found.result.loops
        if any(run.load is not None or one.typical is not None for one in loop.requests)
    ]  # without a load, few batches of which none can be compared are no section
    if not loops:
        return None
    blocks: list[Block] = [Paragraph(ABOUT, "note")]
    for loop in loops:
        blocks += _loop(loop)
    if found.result.notes:
        blocks.append(Details("What was not recorded", [Items(found.result.notes)]))
    charts = [Chart(_picture(found, place, number)) for place in range(len(found.timelines))]
    below = [Section("The slowest of them above a typical one", charts)] if charts else []
    return Section(title, blocks, below)


def _picture(found: SlowestReport, place: int, number: int) -> Picture:
    picture = timeline_picture(f"slowest_{number}_{place}", found.timelines[place])
    return replace(picture, notes=(*picture.notes, HINT)) if place == 0 else picture


def _loop(loop: SlowLoop) -> Iterator[Block]:
    by = "latency (done less intended)" if loop.measured_by == "latency" else "duration of the batch"
    columns = [
        Column("request"), Column("process"), Column("phase"), Column(by.split(" (")[0], "ms", by),
        Column("typical", "ms"), Column("more", "ms"), Column("what was different"), Column("part of it", "ms"),
        Column("usual", "ms", "a difference of that part up to this is the usual spread"),
    ]  # fmt: skip
    of_requests = [(request, list(_rows(request))) for request in loop.requests]
    rows = [row for _, own in of_requests for row in own]
    of = f" of {loop.processes} processes" if loop.processes > 1 else ""
    note = f"{loop.loop}: the slowest of {loop.batches:,} batches{of}, by {by}; ms."
    yield Table(f"slowest {loop.loop}", columns, rows, note)
    common = [f"{one.requests} of {one.of}: {common_text(one)}" for one in loop.common]
    if loop.unexplained:
        common.append(f"{loop.unexplained} of {len(loop.requests)}: nothing in the trace explains them")
    if common:
        yield Items(common)


def _rows(request: SlowRequest) -> Iterator[list[Cell]]:
    """A row a part; the first says which request it is."""
    typical = None if request.typical is None else request.typical.ms
    head: list[Cell] = [
        str(request.index), request.process, request.phase or "", request.ms, typical, request.difference_ms,
    ]  # fmt: skip
    remark = remark_text(request)
    parts: list[list[Cell]] = [
        [part_text(part, bool(request.stages)), part.ms, part.usual_ms] for part in request.parts
    ]
    if remark or not parts:
        parts.insert(0, [remark, None, None])
    if request.waited_for is not None:
        parts.append([f"of this, in collectives until rank {request.waited_for.rank} had come", request.waited_for.ms,
                      None])  # fmt: skip
    if request.parts and request.small_ms is not None and request.rest_ms is not None:
        parts.append(["rest: within the usual spread, or small", request.small_ms + request.rest_ms, None])
    for place, part in enumerate(parts):
        yield [*(head if place == 0 else [""] * len(head)), *part]
