"""What reaches a terminal: no steering characters, no digit cut."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perfharness.render.blocks import Cell, Column, Items, Paragraph, Section, Table, cell_text
from perfharness.render.console import Console, print_blocks, say
from perfharness.render.text import safe

HOSTILE = "a\x1b[31mred\x1b]52;c;Zm9v\x07\x9b2J\u202etxt\r\x7f[bold]:smile:"


def printed(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


class Terminal(Console):
    """A terminal of some width, without colours."""

    def __init__(self, width: int) -> None:
        super().__init__(file=io.StringIO(), width=width)
        self.height = 25  # without one, a dumb terminal (TERM) has 80 columns
        self._force_terminal, self._color_system = True, None


def steers(text: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cs") and character != "\n" for character in text) or any(
        character in text for character in "\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.3456, "12.346"),
        (0.0, "0.000"),
        (0.012, "0.01200"),
        (0.00123456, "0.00123"),
        (1.1843e-6, "1.18e-06"),
        (None, "-"),
    ],
)
def test_a_small_time_keeps_its_digits(value: float | None, text: str) -> None:
    """As that of an item of a batch that has a million."""
    assert cell_text(value, "ms") == text


@given(st.text())
def test_safe_text_has_nothing_that_steers_and_leaves_all_else(text: str) -> None:
    assert not steers(safe(text).replace("\t", ""))
    if not steers(text.replace("\t", "")):
        assert safe(text) == text


@pytest.mark.parametrize("markdown", [False, True])
@pytest.mark.parametrize("how", ["say", "print", "table", "items"])
def test_nothing_steers_a_terminal_and_nothing_is_read_as_markup(how: str, markdown: bool) -> None:
    console = Console(file=io.StringIO(), width=300, markdown=markdown)
    if how == "say":
        say(console, HOSTILE)
    elif how == "print":
        console.print(HOSTILE)
    elif how == "table":
        print_blocks(console, [Table("t", [Column("name")], [[HOSTILE + "\nx"]])])
    else:
        print_blocks(console, [Section(HOSTILE, [Paragraph(HOSTILE), Items([[HOSTILE, HOSTILE]], numbered=True)])])
    text = printed(console)
    assert not steers(text)
    assert re.search(r"\\+x1b\\?\[31mred", text)
    assert ":smile:" in text


NUMBERS = st.floats(0, 1e9)


@given(
    st.lists(st.tuples(st.text(max_size=60), NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5), st.integers(40, 200)
)
def test_no_digit_is_cut_at_any_width(rows: list[tuple[Cell, ...]], width: int) -> None:
    """Columns go instead, and are named below."""
    columns = [Column("stage"), Column("CPU", "ms"), Column("p50", "ms", drop=1), Column("p99", "ms", drop=2)]
    console = Terminal(width)
    print_blocks(console, [Table("t", columns, rows)])
    head, *lines = printed(console).splitlines()
    shown = [name for name in ("CPU", "p50", "p99") if name in head.split()]
    assert shown == ["CPU", "p50", "p99"][: len(shown)]
    text = "\n".join(lines)
    for row in rows:
        assert all(cell_text(cell, "ms") in text for cell in row[1 : 1 + len(shown)])
    assert all(cell_len(line) <= width or "too narrow" in line for line in lines)
    if len(shown) < 3:
        assert all(re.search(rf"\b{name}\b", lines[-1]) for name in ("CPU", "p50", "p99") if name not in shown)
