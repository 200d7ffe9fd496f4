"""The slowest requests beside the typical one, as a section of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfharness.analysis.slowest import SlowLoop, SlowRequest
from perfharness.render.blocks import Block, Cell, Chart, Column, Details, Items, Paragraph, Section, Table
from perfharness.render.charts.drawing import Picture
from perfharness.render.charts.report import timeline_picture
from perfharness.render.terminal.slowest import part_rows
from perfharness.runs.report.model import RunReport, SlowestReport

ABOUT = (
    "Each beside the median of the other batches of its loop. The parts sum to the difference; a part is named if it "
    "is beyond its usual spread. `perfharness analyze --slowest N` shows more of them, with stages and GPU operations."
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
    rows = [row for request in loop.requests for row in _rows(request)]
    of = f" of {loop.processes} processes" if loop.processes > 1 else ""
    note = f"{loop.loop}: the slowest of {loop.batches:,} batches{of}, by {by}; ms."
    yield Table(f"slowest {loop.loop}", columns, rows, note)
    if loop.unexplained:
        yield Items([f"{loop.unexplained} of {len(loop.requests)}: nothing in the trace explains them"])


def _rows(request: SlowRequest) -> Iterator[list[Cell]]:
    """One row per part; the first says which request it is."""
    typical = None if request.typical is None else request.typical.ms
    head: list[Cell] = [
        str(request.index), request.process, request.phase or "", request.ms, typical, request.difference_ms,
    ]  # fmt: skip
    for place, part in enumerate(part_rows(request)):
        yield [*(head if place == 0 else [""] * len(head)), *part]
