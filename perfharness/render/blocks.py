"""What a view of a result is made of; the terminal, Markdown, HTML and PDF are written from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from perfharness.render.numbers import Kind, number
from perfharness.render.text import safe_line

if TYPE_CHECKING:
    from perfharness.render.charts.drawing import Picture

Style = Literal["", "bold", "dim", "good", "warning", "error"]


@dataclass(frozen=True)
class Span:
    """A part of a line in a style."""

    text: str
    style: Style = ""


Line = str | Span | tuple[str | Span, ...]
"""Text in one line, of parts."""

Cell = Line | float | int | None
"""A cell of a table: a text, a number in the form of its column, or None: not measured."""


def spans(line: Line) -> Iterator[Span]:
    """The parts of a line."""
    for part in line if isinstance(line, tuple) else (line,):
        yield part if isinstance(part, Span) else Span(part)


def plain(line: Line) -> str:
    """The text of a line."""
    return "".join(span.text for span in spans(line))


def cell_text(cell: Cell, kind: Kind = "text") -> str:
    """A cell as text in one line."""
    return safe_line(plain(cell)) if isinstance(cell, str | Span | tuple) else number(cell, kind)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        heading: above it.
        kind: of its numbers: milliseconds, whole numbers, shares (0 to 1), or numbers of any size.
        meaning: an explanation, shown on a page.
        has_bar: whether a bar shows the share.
        drop: on a terminal that is too narrow, the column with the largest goes first; 0: always shown.
    """

    heading: str
    kind: Kind = "text"
    meaning: str = ""
    has_bar: bool = False
    drop: int = 0


@dataclass(frozen=True)
class Table:
    """Rows under headings. A text that begins with blanks is indented.

    Args:
        name: for people who cannot see it, and of its file.
        note: a line above: unit and scope.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def texts(self) -> list[list[str]]:
        """The cells as text, row by row."""
        kinds = [column.kind for column in self.columns]
        return [[cell_text(cell, kind) for cell, kind in zip(row, kinds, strict=True)] for row in self.rows]


Entry = TypeVar("Entry")

Columns = Sequence[tuple[Column, Callable[[Entry], Cell]]]
"""Columns, and the cell of an entry in each."""


def table_of(name: str, columns: Columns[Entry], entries: Iterable[Entry], note: str = "") -> Table:
    """A table with a row for each entry."""
    rows = [[cell(one) for _, cell in columns] for one in entries]
    return Table(name, [column for column, _ in columns], rows, note)


@dataclass(frozen=True)
class Paragraph:
    """A text."""

    text: Line
    style: Literal["plain", "note", "warning", "error"] = "plain"


@dataclass(frozen=True)
class Items:
    """A list; an entry of several lines is a sequence. `numbered`: the order means something."""

    entries: Sequence[Line | list[Line]]
    numbered: bool = False

    def lines(self) -> list[list[Line]]:
        """The lines of each entry."""
        return [entry if isinstance(entry, list) else [entry] for entry in self.entries]


@dataclass(frozen=True)
class Figure:
    """One number that a reader wants first: its label, the number as text, and a remark."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """Numbers beside each other."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Chart:
    """A picture, on pages only; `small`: several fit beside each other."""

    picture: Picture
    small: bool = False


@dataclass(frozen=True)
class Details:
    """Blocks that a page folds at first."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


Block = Table | Paragraph | Items | Figures | Chart | Details | Section


@dataclass(frozen=True)
class Document:
    """A report. The summary is its first page."""

    title: str
    subtitle: str
    summary: Sequence[Block]
    sections: Sequence[Section] = ()


def kind_of(block: Block) -> str:
    """Its name in templates."""
    return type(block).__name__.lower()


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """All blocks, those inside others too."""
    for block in blocks:
        yield block
        if isinstance(block, Details | Section):
            yield from walk(block.blocks)
        if isinstance(block, Section):
            yield from walk(block.sections)
