"""Blocks of a view, which every output format is written from."""

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
    """Styled part of a line."""

    text: str
    style: Style = ""


Line = str | Span | tuple[str | Span, ...]
"""Text in one line."""

Cell = Line | float | int | None
"""Table cell: text, a number to format as its column says, or None if not measured."""


def spans(line: Line) -> Iterator[Span]:
    """Parts of a line."""
    for part in line if isinstance(line, tuple) else (line,):
        yield part if isinstance(part, Span) else Span(part)


def plain(line: Line) -> str:
    """Text of a line."""
    return "".join(span.text for span in spans(line))


def cell_text(cell: Cell, kind: Kind = "text") -> str:
    """Format a cell."""
    return safe_line(plain(cell)) if isinstance(cell, str | Span | tuple) else number(cell, kind)


@dataclass(frozen=True)
class Column:
    """Table column.

    Args:
        kind: format of its numbers: milliseconds, whole numbers, shares (0 to 1), or any.
        meaning: tooltip on a page.
        has_bar: draw a bar for the share on a page.
        drop: on a narrow terminal, columns with larger values are dropped first; 0: never dropped.
    """

    heading: str
    kind: Kind = "text"
    meaning: str = ""
    has_bar: bool = False
    drop: int = 0


@dataclass(frozen=True)
class Table:
    """Table. Leading blanks of a text are its indent.

    Args:
        name: label for screen readers.
        note: line above the table: unit and scope.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def texts(self) -> list[list[str]]:
        """Formatted cells, row by row."""
        kinds = [column.kind for column in self.columns]
        return [[cell_text(cell, kind) for cell, kind in zip(row, kinds, strict=True)] for row in self.rows]


Entry = TypeVar("Entry")

Columns = Sequence[tuple[Column, Callable[[Entry], Cell]]]
"""Columns, each with a function from an entry to its cell."""


def table_of(
    name: str,
    columns: Columns[Entry],
    entries: Iterable[Entry],
    note: str = "",
    names: Iterable[str] | None = None,
    heading: str = "stage",
) -> Table:
    """Make a table with one row per entry; `names` are its first column."""
    rows = [[cell(one) for _, cell in columns] for one in entries]
    shown = [column for column, _ in columns]
    if names is None:
        return Table(name, shown, rows, note)
    return Table(name, [Column(heading), *shown], [[first, *row] for first, row in zip(names, rows, strict=True)], note)


@dataclass(frozen=True)
class Paragraph:
    """Paragraph."""

    text: Line
    style: Literal["plain", "note", "warning", "error"] = "plain"


@dataclass(frozen=True)
class Items:
    """List; an entry of several lines is a list."""

    entries: Sequence[Line | list[Line]]
    numbered: bool = False

    def lines(self) -> list[list[Line]]:
        """Lines of each entry."""
        return [entry if isinstance(entry, list) else [entry] for entry in self.entries]


@dataclass(frozen=True)
class Figure:
    """Key figure, such as the throughput."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """Key figures, side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Chart:
    """Chart, shown on pages only; small ones are placed side by side."""

    picture: Picture
    small: bool = False


@dataclass(frozen=True)
class Details:
    """Blocks that a page shows folded."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """Heading with blocks and subsections."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


Block = Table | Paragraph | Items | Figures | Chart | Details | Section


def filled(sections: Iterable[Section]) -> list[Section]:
    """Sections without the empty ones."""
    return [section for section in sections if section.blocks or section.sections]


def facts(name: str, rows: Sequence[Sequence[Cell]], first: str = "what") -> Table:
    """Table of names and values."""
    return Table(name, [Column(first), Column("value")], rows)


def omitted(count: int, text: str) -> list[Paragraph]:
    """Note on entries that are not shown, or nothing if `count` is 0 or less."""
    return [Paragraph(f"{count} {text}", "note")] if count > 0 else []


@dataclass(frozen=True)
class Document:
    """Report."""

    title: str
    subtitle: str
    summary: Sequence[Block]
    sections: Sequence[Section] = ()


def kind_of(block: Block) -> str:
    """Name of the block's type in templates."""
    return type(block).__name__.lower()


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """Iterate over all blocks, nested ones included."""
    for block in blocks:
        yield block
        if isinstance(block, Details | Section):
            yield from walk(block.blocks)
        if isinstance(block, Section):
            yield from walk(block.sections)
