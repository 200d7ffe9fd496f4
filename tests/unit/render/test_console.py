"""What reaches a terminal: no steering characters, no digit cut."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perfharness.render.blocks import cell_text
from perfharness.render.terminal.console import Column, Console, ms_text, print_table, say
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
    ("value", "terminal", "report"),
    [
        (12.3456, "12.346", "12.346"),
        (0.0, "0.000", "0.000"),
        (0.012, "0.012", "0.01200"),
        (0.00123456, "0.00123", "0.00123"),
        (1.1843e-6, "1.18e-06", "1.18e-06"),
    ],
)
def test_a_small_time_keeps_its_digits(value: float, terminal: str, report: str) -> None:
    """As that of an item of a batch that has a million."""
    assert (ms_text(value), cell_text(value, "ms")) == (terminal, report)


@given(st.text())
def test_safe_text_has_nothing_that_steers_and_leaves_all_else(text: str) -> None:
    assert not steers(safe(text).replace("\t", ""))
    if not steers(text.replace("\t", "")):
        assert safe(text) == text


@pytest.mark.parametrize("how", ["say", "print", "table", "rich table"])
def test_nothing_steers_a_terminal_and_nothing_is_read_as_markup(how: str) -> None:
    console = Console(file=io.StringIO(), width=300)
    if how == "say":
        say(console, HOSTILE)
    elif how == "print":
        console.print(HOSTILE)
    elif how == "table":
        print_table(console, [Column("name", is_text=True)], [[HOSTILE + "\nx"]])
    else:
        from rich.table import Table

        table = Table()
        table.add_column("name", width=200)
        table.add_row(HOSTILE)
        console.print(table)
    text = printed(console)
    assert not steers(text)
    assert "\\x1b[31mred" in text
    assert "[bold]:smile:" in text


CELLS = st.floats(0, 1e9).map(lambda value: f"{value:.3f}")


@given(st.lists(st.tuples(st.text(max_size=60), CELLS, CELLS, CELLS), min_size=1, max_size=5), st.integers(30, 200))
def test_no_digit_is_cut_at_any_width(rows: list[tuple[str, str, str, str]], width: int) -> None:
    columns = [Column("stage", is_text=True), Column("CPU"), Column("p50", drop=1), Column("p99", drop=2)]
    console = Terminal(width)
    print_table(console, columns, rows)
    head, _, *lines = printed(console).splitlines()
    shown = [name for name in ("CPU", "p50", "p99") if name in head.split()]
    assert shown == ["CPU", "p50", "p99"][: len(shown)]
    for line, row in zip(lines, rows, strict=False):
        assert line.split()[-len(shown) :] == list(row[1 : 1 + len(shown)])
        assert cell_len(line) <= max(width, 30)
    if len(shown) < 3:
        assert all(re.search(rf"\b{name}\b", lines[-1]) for name in ("CPU", "p50", "p99") if name not in shown)
