"""The parts of a report, whatever format it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfharness.render.charts.drawing import Picture
from perfharness.render.text import NOT_MEASURED, safe_line

Kind = Literal["text", "ms", "count", "share", "number"]
Cell = str | float | int | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        heading: above it.
        kind: of its cells: text, milliseconds, whole numbers, shares (0 to 1), or numbers of any size.
        meaning: what it is, for who asks.
        has_bar: whether a bar shows the share.
    """

    heading: str
    kind: Kind = "text"
    meaning: str = ""
    has_bar: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under headings. A text that begins with blanks is indented."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Paragraph:
    """Text."""

    text: str
    style: Literal["plain", "note", "warning", "error"] = "plain"


@dataclass(frozen=True)
class Items:
    """A list; `numbered`: the order means something."""

    texts: Sequence[str]
    numbered: bool = False


@dataclass(frozen=True)
class Figure:
    """One number that a reader wants first: its label, the number as text, and what must be known about it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """Numbers next to each other."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Chart:
    """A picture; `small`: several of them fit next to each other."""

    picture: Picture
    small: bool = False


@dataclass(frozen=True)
class Details:
    """Parts that are folded at first."""

    title: str
    blocks: Sequence[Block]


Block = Table | Paragraph | Items | Figures | Chart | Details


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Document:
    """A report. The summary is its first page."""

    title: str
    subtitle: str
    summary: Sequence[Block]
    sections: Sequence[Section] = field(default_factory=tuple)


def cell_text(cell: Cell, kind: Kind) -> str:
    """A cell as text: numbers in the form of their kind, texts in one line."""
    if cell is None:
        return NOT_MEASURED
    if isinstance(cell, str):
        return safe_line(cell)
    if kind == "share":
        return f"{100 * cell:.1f} %"
    if kind == "ms":
        return (
            f"{cell:,.3f}" if abs(cell) >= 0.1 or cell == 0 else f"{cell:.5f}" if abs(cell) >= 1e-3 else f"{cell:.3g}"
        )
    if kind == "count" or isinstance(cell, int):
        return f"{cell:,.0f}"
    return number_text(cell)


def number_text(value: float) -> str:
    """Four digits or more."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 10_000 else f"{value:,.4g}" if size >= 1e-4 or size == 0 else f"{value:.3g}"
