"""Printing: text without terminal control sequences, and tables in which no digit is cut.

Names come from scripts, traces and files of others. `Console` escapes its whole output; `safe` escapes text
that is printed otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import rich.console
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from perfharness.render.console import Console as Console
from perfharness.render.text import NOT_MEASURED, safe, safe_line

GAP = "  "
LEAST_TEXT_WIDTH = 12
"""Minimum width of a shortened text column."""


def say(console: rich.console.Console, *parts: str | Text) -> None:
    """A line, as it is; parts with a style are `Text`."""
    line = Text.assemble(*(Text(safe(part)) if isinstance(part, str) else part for part in parts))
    console.print(line, soft_wrap=True, highlight=False)


def styled(text: str, style: str) -> Text:
    """Text in a style; names in it are escaped."""
    return Text(safe(text), style)


def fixed(value: float | None, digits: int = 3) -> str:
    """A number for a table, with that many digits after the point."""
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        heading: above it; may have several lines.
        is_text: left-aligned, and shortened where a terminal is too narrow; numbers are never cut.
        drop: 0: always shown; else, on a terminal that is too narrow, the column with the largest goes first.
        is_whole: a text that is not shortened, for it says which row it is.
    """

    heading: str
    is_text: bool = False
    drop: int = 0
    is_whole: bool = False


Row = Sequence["str | Text"]


def print_table(console: rich.console.Console, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print a table.

    On a terminal that is too narrow, columns are omitted and named below; elsewhere all are printed in full.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    if getattr(console, "markdown", False):
        _print_markdown(console, columns, cells)
        return
    headings = [safe(column.heading).split("\n") for column in columns]
    natural = [
        max([cell_len(line) for line in heading] + [cell_len(row[place].plain) for row in cells])
        for place, heading in enumerate(headings)
    ]
    shown = list(range(len(columns)))
    room = console.width if console.is_terminal else None
    if room is not None:
        shown = _fitting(columns, natural, room)
        natural = _shortened(columns, natural, shown, room)
    height = max((len(heading) for heading in headings), default=0)
    for line in range(height):
        texts = [_line_of(headings[place], line, height) for place in shown]
        _print_row(console, columns, shown, natural, [Text(text, "bold") for text in texts])
    rule = "-" if console.options.ascii_only else "─"
    say(console, " " + rule * (sum(natural[place] for place in shown) + len(GAP) * (len(shown) - 1)))
    for row in cells:
        _print_row(console, columns, shown, natural, [row[place] for place in shown])
    left_out = [" ".join(headings[place]).strip() for place in range(len(columns)) if place not in shown]
    if left_out:
        say(console, f" the terminal is too narrow for: {', '.join(left_out)} (a pipe shows all: … | less -S)")


def _cell(cell: str | Text) -> Text:
    return Text(safe_line(cell)) if isinstance(cell, str) else Text(safe_line(cell.plain), cell.style)


def _width(natural: Sequence[int], shown: Sequence[int]) -> int:
    return 1 + sum(natural[place] for place in shown) + len(GAP) * (len(shown) - 1)


def _fitting(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    """The columns that fit the terminal; text columns count with their minimum width."""
    least = [
        min(width, LEAST_TEXT_WIDTH) if column.is_text and not column.is_whole else width
        for column, width in zip(columns, natural, strict=True)
    ]
    shown = list(range(len(columns)))
    for place in sorted((place for place in shown if columns[place].drop), key=lambda place: -columns[place].drop):
        if _width(least, shown) <= room:
            break
        shown.remove(place)
    return shown


def _shortened(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int], room: int) -> list[int]:
    """Widths that fit, shortening the widest text column first."""
    widths = list(natural)
    while (over := _width(widths, shown) - room) > 0:
        texts = [
            place
            for place in shown
            if columns[place].is_text and not columns[place].is_whole and widths[place] > LEAST_TEXT_WIDTH
        ]
        if not texts:
            break
        widest = max(texts, key=lambda place: widths[place])
        widths[widest] = max(LEAST_TEXT_WIDTH, widths[widest] - over)
    return widths


def _line_of(heading: Sequence[str], line: int, height: int) -> str:
    above = height - len(heading)
    return heading[line - above] if line >= above else ""


def _print_row(
    console: rich.console.Console, columns: Sequence[Column], shown: Sequence[int], widths: Sequence[int], row: Row
) -> None:
    parts: list[str | Text] = [" "]
    for position, (place, cell) in enumerate(zip(shown, row, strict=True)):
        text = cell if isinstance(cell, Text) else Text(cell)
        width, is_last = widths[place], position == len(shown) - 1
        if cell_len(text.plain) > width:
            dots = "..." if console.options.ascii_only else "…"
            text = Text(set_cell_size(text.plain, width - len(dots)).rstrip() + dots, text.style)
        blank = " " * (width - cell_len(text.plain))
        parts += [GAP] * (position > 0) + (
            [text, "" if is_last else blank] if columns[place].is_text else [blank, text]
        )
    say(console, *parts)


def _print_markdown(console: rich.console.Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    say(console, "")
    say(console, line(markdown_text(safe_line(column.heading).replace("\\n", " ")) for column in columns))
    say(console, line(":--" if column.is_text else "--:" for column in columns))
    for row in rows:
        say(console, line(_indented(cell.plain) for cell in row))
    say(console, "")


def _indented(text: str) -> str:
    """Keep leading blanks, which show a stage's depth and which Markdown drops."""
    depth = len(text) - len(text.lstrip(" "))
    return "&nbsp;" * depth + markdown_text(text.strip(" "))


LEAST_MS = 0.01
"""Below, three decimals are one digit or none."""


def ms_text(value: float) -> str:
    """Milliseconds: three decimals, and of a small time three digits that mean something."""
    return f"{value:.3f}" if abs(value) >= LEAST_MS or value == 0 else f"{value:.3g}"


MARKDOWN = re.compile(r"[\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w)")
"""What Markdown, or the HTML in it, gives a meaning; an underscore inside a word has none."""


def markdown_text(text: str) -> str:
    """The text for Markdown, in which it means nothing but itself."""
    return MARKDOWN.sub(lambda found: f"\\{found[0]}", text)
