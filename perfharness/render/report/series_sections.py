"""Versions compared, as blocks of a report."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.render.blocks import Block, Cell, Chart, Column, Items, Paragraph, Table
from perfharness.render.charts.report import comparison_picture
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
from perfharness.runs.comparison.result import ComparedVersion, Comparison


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
