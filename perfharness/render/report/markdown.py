"""A report as Markdown: its tables and sentences, without charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfharness.render.report.document import (
    Block,
    Details,
    Document,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    cell_text,
)
from perfharness.render.terminal.console import markdown_text
from perfharness.render.text import safe_line


def markdown(document: Document) -> str:
    """All of it as GitHub's Markdown."""
    lines = [f"# {_md(document.title)}", "", _md(document.subtitle), "", *_md_blocks(document.summary)]
    for section in document.sections:
        lines += _md_section(section, 2)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _md(text: str) -> str:
    return markdown_text(safe_line(text))


def _md_section(section: Section, level: int) -> Iterator[str]:
    blocks = list(_md_blocks(section.blocks))
    below = [line for one in section.sections for line in _md_section(one, level + 1)]
    if blocks or below:  # a section of charts only has nothing to say here
        yield from (f"{'#' * min(level, 6)} {_md(section.title)}", "", *blocks, *below)


def _md_blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _md_table(block)
        elif isinstance(block, Paragraph):
            yield from (("**Error:** " if block.style == "error" else "") + _md(block.text), "")
        elif isinstance(block, Items):
            for place, text in enumerate(block.texts, 1):
                yield f"{f'{place}.' if block.numbered else '-'} {_md(text)}"
            yield ""
        elif isinstance(block, Figures):
            for one in block.figures:
                yield f"- {_md(one.label)}: **{_md(one.value)}**" + (f" ({_md(one.note)})" if one.note else "")
            yield ""
        elif isinstance(block, Details):
            yield from (f"**{_md(block.title)}**", "", *_md_blocks(block.blocks))


def _md_table(table: Table) -> Iterator[str]:
    if table.note:
        yield from (_md(table.note), "")
    yield f"| {' | '.join(_md(column.heading) for column in table.columns)} |"
    yield f"| {' | '.join(':--' if column.kind == 'text' else '--:' for column in table.columns)} |"
    for row in table.rows:
        cells = [_md_cell(cell_text(cell, column.kind)) for cell, column in zip(row, table.columns, strict=True)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _md_cell(text: str) -> str:
    """Leading blanks, which show a stage's depth, stay."""
    depth = len(text) - len(text.lstrip(" "))
    return "&nbsp;" * depth + markdown_text(text.strip(" "))
