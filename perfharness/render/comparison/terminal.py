"""A comparison as tables for a terminal."""

from __future__ import annotations

from rich.text import Text

from perfharness.render.comparison.texts import (
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
from perfharness.render.terminal.console import Column, Console, print_table, say, styled
from perfharness.runs.comparison.result import ComparedRow, ComparedVersion, Comparison

STYLES = {"slower": "bold red", "faster": "bold green", "undecided": "yellow", "not-comparable": "yellow"}

COLUMNS = (
    Column("stage", is_text=True, is_whole=True),
    Column("figure", is_text=True),
    Column("base", drop=2),
    Column("new", drop=1),
    Column("change"),
    Column("interval", drop=3),
    Column("verdict", is_text=True),
)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a table a version, what differs, and the limits."""
    for place, version in enumerate(comparison.versions):
        if place:
            say(console, "")
        say(console, styled(headline(comparison.base, version), "bold"))
        print_table(console, COLUMNS, _rows(version))
        say(console, f"{counts(version.rows)}; {rule_text(comparison)}")
        for note in notes(version):
            say(console, f" - {note}")
    for result in comparison.limits:
        say(console, styled(limit_text(result), STYLES["slower"] if result.failed else ""))


def rule_text(comparison: Comparison) -> str:
    """How the verdicts were made, in a line."""
    rule = comparison.rule
    text = f"differences from {100 * rule.min_effect:g} % on count"
    if not comparison.rows_tested:
        return text
    return f"{text}; at most {100 * rule.alpha:g} % false alarms in all {comparison.rows_tested} rows together"


def _rows(version: ComparedVersion) -> list[list[str | Text]]:
    """A row a figure; the stage is written once, its depth as blanks."""
    found: list[list[str | Text]] = []
    before = None
    for row in version.rows:
        found.append(
            [
                stage_text(row) if row.stage != before else "",
                figure_text(row),
                side_amount(row, is_new=False),
                side_amount(row, is_new=True),
                change(row.ratio),
                interval(row.judged_by),
                styled(verdict_text(row), STYLES.get(row.verdict, "")),
            ]
        )
        before = row.stage
    return found


def stage_text(row: ComparedRow) -> str:
    """The stage's path, and its new one where that differs; of the run, a word."""
    if not row.stage:
        return "(run)"
    return row.stage if row.new_stage is None else f"{row.stage} -> {row.new_stage}"
