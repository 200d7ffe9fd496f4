"""The tables of a report."""

from __future__ import annotations

import itertools

from perfharness.render.blocks import Document, Table, walk


def tables_of(document: Document) -> dict[str, Table]:
    """All of them by their names, in order."""
    return {block.name: block for block in walk([*document.summary, *document.sections]) if isinstance(block, Table)}


def markdown_table(text: str, *headings: str) -> list[dict[str, str]]:
    """Rows of the first table of a report in Markdown that has these headings."""
    lines = [line.strip("|").split(" | ") if line.startswith("|") else [] for line in text.splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    first = next(place for place, line in enumerate(cells) if set(headings) <= set(line))
    rows = itertools.takewhile(bool, cells[first + 2 :])
    return [dict(zip(cells[first], row, strict=True)) for row in rows]
