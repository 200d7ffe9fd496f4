"""A comparison as Markdown for a pull request: what changed is seen at once, the rest is folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from perfharness.render.terminal.console import markdown_text
from perfharness.render.text import safe_line
from perfharness.runs.comparison.result import ComparedRow, ComparedVersion, Comparison

MARKS = {"slower": "🔴", "faster": "🟢", "undecided": "🟡", "not-comparable": "⚪", "same": "⚪"}
HEADINGS = ("", "stage", "figure", "base", "new", "change", "interval", "verdict")


def comparison_markdown(comparison: Comparison) -> str:
    """The whole text."""
    lines: list[str] = []
    for version in comparison.versions:
        lines += [*_version(comparison, version), ""]
    lines += [f"- {'🔴' if result.failed else '🟢'} {_text(limit_text(result))}" for result in comparison.limits]
    return "\n".join(lines).rstrip() + "\n"


def _version(comparison: Comparison, version: ComparedVersion) -> Iterator[str]:
    yield f"### {_text(counts(version.rows))}"
    yield ""
    yield f"{_text(headline(comparison.base, version))}; {_text(rule_text(comparison))}."
    yield ""
    rows = sorted(version.rows, key=lambda row: ORDER.index(row.verdict))
    changed = [row for row in rows if row.verdict in ("slower", "faster")]
    rest = [row for row in rows if row not in changed]
    if changed:
        yield from _table(changed)
    if rest:
        yield from ("<details>", f"<summary>{_text(counts(rest))}</summary>", "", *_table(rest), "</details>", "")
    yield from (f"- {_text(note)}" for note in notes(version))


def _table(rows: Iterable[ComparedRow]) -> Iterator[str]:
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|:-:|:--|:--|--:|--:|--:|--:|:--|"
    for row in rows:
        cells = (
            stage_text(row), figure_text(row), side_amount(row, is_new=False), side_amount(row, is_new=True),
            change(row.ratio), interval(row.judged_by), verdict_text(row),
        )  # fmt: skip
        yield f"| {' | '.join((MARKS[row.verdict], *map(_text, cells)))} |"
    yield ""


def _text(text: str) -> str:
    return markdown_text(safe_line(text))
