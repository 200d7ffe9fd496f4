"""Terminal output. Control sequences are escaped, numbers are never cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any

import rich.console
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from perfharness.render.blocks import Block, Figures, Items, Line, Paragraph, Section, Span, Style, Table, spans
from perfharness.render.markdown import blocks_as_markdown
from perfharness.render.text import safe, safe_line

LEAST_TEXT_WIDTH, WHOLE_TEXT_WIDTH = 12, 24
"""Smallest width of a text column, and the width below which other columns are dropped first."""

ANY_WIDTH = 100_000
"""Width of output that is not a terminal."""

STYLES: dict[Style, str] = {"good": "green", "warning": "yellow", "error": "bold red"}

PARAGRAPHS: dict[str, str] = {"plain": "", "note": "dim", "warning": "yellow", "error": "bold red"}


class Console(rich.console.Console):
    """Console without markup and automatic colours, which escapes control characters.

    Args:
        markdown: print blocks as Markdown.
    """

    def __init__(
        self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None, markdown: bool = False
    ) -> None:
        super().__init__(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False)
        self.markdown = markdown

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(safe(segment.text), segment.style)


def say(console: rich.console.Console, *parts: str | Span | Text) -> None:
    """Print a line."""
    line = Text.assemble(*(part if isinstance(part, Text) else _text(part) for part in parts))
    console.print(line, soft_wrap=True, highlight=False)


def print_blocks(console: rich.console.Console, blocks: Iterable[Block]) -> None:
    """Print blocks; a terminal shows no charts and no folded details."""
    shown = list(blocks)
    if getattr(console, "markdown", False):
        say(console, blocks_as_markdown(shown))
        return
    for place, block in enumerate(shown):
        if place and isinstance(block, Table | Section):
            say(console)
        if isinstance(block, Table):
            _print_table(console, block)
        elif isinstance(block, Paragraph):
            say(console, Text(style=PARAGRAPHS[block.style]) + _text(block.text))
        elif isinstance(block, Items):
            _print_items(console, block)
        elif isinstance(block, Figures):
            for one in block.figures:
                say(console, f"{one.label}: {one.value}{f' ({one.note})' if one.note else ''}")
        elif isinstance(block, Section):
            say(console, Span(block.title, "bold"))
            print_blocks(console, [*block.blocks, *block.sections])


def _text(line: Line) -> Text:
    return Text.assemble(*((safe(span.text), STYLES.get(span.style, span.style)) for span in spans(line)))


def _print_items(console: rich.console.Console, items: Items) -> None:
    for number, entry in enumerate(items.lines(), 1):
        mark = f"{number}." if items.numbered else "-"
        lines = [_text(line) for line in entry]
        if console.is_terminal:
            grid = Grid.grid(padding=(0, 1))
            for place, line in enumerate(lines):
                grid.add_row("" if place else f" {mark}", line)
            console.print(grid)
        else:
            for place, line in enumerate(lines):
                say(console, f" {' ' * len(mark) if place else mark} ", line)


def _print_table(console: rich.console.Console, table: Table) -> None:
    """Print a table; on a narrow terminal, drop columns and name them below."""
    if table.note:
        say(console, table.note)
    cells = table.texts()
    widths = [
        max([cell_len(safe_line(column.heading)), *(cell_len(row[place]) for row in cells)])
        for place, column in enumerate(table.columns)
    ]
    room = console.width - 1 if console.is_terminal else ANY_WIDTH
    least, narrow = list(widths), list(widths)
    for place, column in enumerate(table.columns):
        has_blanks = any(" " in row[place].strip() for row in cells)
        if column.kind == "text" and (has_blanks or widths[place] > WHOLE_TEXT_WIDTH):
            least[place] = widths[place] if column.drop else min(widths[place], WHOLE_TEXT_WIDTH)
            narrow[place] = min(widths[place], LEAST_TEXT_WIDTH)
    shown = _fitting(table, least, narrow, room)
    given = least if _total(least, shown) <= room else narrow
    spare = room - _total(given, shown)
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for place in shown:
        column, is_text = table.columns[place], table.columns[place].kind == "text"
        grid.add_column(
            Text(safe_line(column.heading)),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            width=given[place] + (more := min(max(spare, 0), widths[place] - given[place])),
        )
        spare -= more
    for row, texts in zip(table.rows, cells, strict=True):
        grid.add_row(*(_styled_cell(row[place], texts[place]) for place in shown))
    for line in console.render_lines(grid, console.options.update(max_width=room), pad=False):
        text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
        text.rstrip()
        say(console, " ", text)
    left_out = [column.heading for place, column in enumerate(table.columns) if place not in shown]
    if left_out:
        say(console, f" Not shown: {', '.join(left_out)} (too narrow; pipe into less -S to see all)")


def _styled_cell(cell: object, text: str) -> Text:
    return _text(cell) if isinstance(cell, Span | tuple) else Text(text)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[place] + 2 for place in shown) - 2


def _fitting(table: Table, least: Sequence[int], narrow: Sequence[int], room: int) -> list[int]:
    """Indices of the columns that fit. Drops those with a `drop` first, then from the right."""
    shown = list(range(len(least)))
    droppable = [place for place in shown if table.columns[place].drop]
    for place in sorted(droppable, key=lambda place: -table.columns[place].drop):
        if _total(least, shown) <= room:
            break
        shown.remove(place)
    while len(shown) > 1 and _total(narrow, shown) > room:
        shown.pop()
    return shown
