"""Several launches as sections of a report: repeats, sweeps over processes, cold starts, and versions compared."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.model.result import path_of
from perfharness.render.blocks import Block, Cell, Chart, Column, Items, Paragraph, Section, Table
from perfharness.render.charts.report import comparison_picture
from perfharness.render.charts.scaling import scaling_picture
from perfharness.render.comparison.terminal import rule_text, stage_text
from perfharness.render.comparison.texts import (
    ORDER,
    change,
    counts,
    figure_text,
    headline,
    interval,
    limit_text,
    notes,
    side_amount,
    verdict_text,
)
from perfharness.render.terminal.series import COLD_START_LABELS
from perfharness.render.views.names import row_names
from perfharness.runs.comparison.result import ComparedVersion, Comparison
from perfharness.runs.report.model import SeriesReport
from perfharness.runs.series.repeat_file import OverLaunches, Repeat
from perfharness.runs.series.scaling import Scaling, busy_share, total_power_w

REPEATED = {"CPU": "cpu_time", "p95": "cpu_time_p95", "GPU busy": "gpu_busy_time"}
"""Heading -> metric of a repeat's table."""


def series_sections(found: SeriesReport, number: int) -> Iterator[Section]:
    """What the launches of a folder come to together."""
    if found.repeat is not None:
        yield _repeat(found.repeat, found.shown)
    if found.scaling is not None:
        yield _scaling(found.scaling, number)
    if found.cold_start is not None:
        columns = [Column("median of processes"), Column("cold cache", "ms"), Column("warm cache", "ms")]
        rows: list[list[Cell]] = [
            [label, found.cold_start.cold[name].median, found.cold_start.warm[name].median]
            for name, label in COLD_START_LABELS.items()
            if name in found.cold_start.cold and name in found.cold_start.warm
        ]
        blocks: list[Block] = [Table("cold start", columns, rows, "ms, of fresh processes.")]
        if found.cold_start.cold_reason is not None:
            blocks.append(Paragraph(f"Cold cache: {found.cold_start.cold_reason}.", "note"))
        yield Section("Cold starts", blocks)


def _repeat(repeat: Repeat, shown: str | None) -> Section:
    columns = [Column("stage"), Column("launches", "count")]
    for heading in REPEATED:
        columns += [Column(heading, "ms"), Column(f"95 % of {heading}")]
    rows: list[list[Cell]] = []
    for path, metrics in repeat.stages.items():
        values = [metrics.get(metric) for metric in REPEATED.values()]
        figures = [cell for one in values for cell in ((None, None) if one is None else (one.mean, _ends(one)))]
        rows.append([path, sum(value is not None for value in metrics["cpu_time"].values), *figures])
    unused = [place for place in range(2, len(columns)) if all(row[place] is None for row in rows)]
    columns = [column for place, column in enumerate(columns) if place not in unused]
    rows = [[cell for place, cell in enumerate(row) if place not in unused] for row in rows]
    names = row_names([path_of(path) for path in repeat.stages])
    rows = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    of = len(repeat.measured)
    note = f"ms a batch, without warm-up: means over {of} launches, whose differences the intervals rest on."
    blocks: list[Block] = [Table("launches", columns, rows, note)]
    for name, unit in (("items_per_second", "items/s"),):
        if name in repeat.run and repeat.run[name].mean is not None:
            ends = _ends(repeat.run[name])
            text = f"Throughput: {repeat.run[name].mean:,.1f} {unit}" + (f" (95 %: {ends})" if ends else "")
            blocks.append(Paragraph(text))
    left_out = [f"{row.folder}: {row.reason or row.status}" for row in repeat.rows if row.status != "ok"]
    blocks += [Items(left_out)] if left_out else []
    if shown is not None:
        blocks.append(
            Paragraph(f"What follows is {shown}, the launch in the middle by the time of its batches.", "note")
        )
    return Section("Over launches", blocks)


def _ends(one: OverLaunches) -> str | None:
    return None if one.low is None or one.high is None else f"{one.low:,.3f} to {one.high:,.3f}"


def _scaling(scaling: Scaling, number: int) -> Section:
    columns = [
        Column("processes", "count"), Column("items/s", "number"), Column("speed-up", "number"),
        Column("efficiency", "share", has_bar=True), Column("p50", "ms"), Column("p99", "ms"),
        Column("GPU busy", "share", has_bar=True), Column("power (W)", "number"), Column("remark"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            point.row.num_processes, point.row.items_per_second, point.speedup, point.efficiency,
            point.row.latency_p50_ms, point.row.latency_p99_ms, busy_share(point.row), total_power_w(point.row),
            "; ".join(filter(None, (point.row.reason, *point.row.findings))),
        ]
        for point in scaling.points
    ]  # fmt: skip
    knee = scaling.knee
    where = f"The knee is at {knee.num_processes} processes" if knee.num_processes is not None else "There is no knee"
    picture = scaling_picture(scaling)
    return Section(
        "Scaling over processes",
        [Table(f"scaling {number}", columns, rows), Paragraph(f"{where}: {knee.reason}."), Chart(picture)],
    )


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Every version against the base: verdicts, the rows that changed, the rest, remarks."""
    for number, version in enumerate(comparison.versions):
        yield Paragraph(f"{headline(comparison.base, version)}: {counts(version.rows)}; {rule_text(comparison)}.")
        yield from _version(version, number)
    if comparison.limits:
        yield Items([limit_text(limit) for limit in comparison.limits])


def _version(version: ComparedVersion, number: int) -> Iterator[Block]:
    picture = comparison_picture(f"comparison_{number}", version, [stage_text(row) for row in version.rows])
    if picture is not None:
        yield Chart(picture)
    columns = [
        Column("stage"), Column("figure"), Column("base"), Column("new"), Column("change"),
        Column("interval", meaning="the one that the verdict rests on, corrected for the number of rows"),
        Column("verdict"),
    ]  # fmt: skip
    ordered = sorted(version.rows, key=lambda row: ORDER.index(row.verdict))
    rows: list[list[Cell]] = [
        [
            stage_text(row), figure_text(row), side_amount(row, is_new=False), side_amount(row, is_new=True),
            change(row.ratio), interval(row.judged_by), verdict_text(row),
        ]
        for row in ordered
    ]  # fmt: skip
    if rows:
        yield Table(f"comparison with {version.side.name}", columns, rows, "± is the spread between launches.")
    if remarks := notes(version):
        yield Items(remarks)
