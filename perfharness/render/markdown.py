"""Reports as GitHub-flavoured Markdown, without charts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from perfharness.render.blocks import Block, Details, Document, Figures, Items, Line, Paragraph, Section, Table, plain
from perfharness.render.text import safe, safe_line

SPECIAL = re.compile(r"(`[^`|\n]+`)|[\\`*\[\]<|~&$]|(?<!-)>|(?<!\w)_|_(?!\w)")
"""Inline code, which is kept, and special characters of Markdown and HTML."""

CODE = " " * 4
"""Indent of quoted output."""


def markdown(document: Document) -> str:
    """Render a report."""
    title = [f"# {escaped(document.title)}", "", escaped(document.subtitle), ""]
    return _joined([*title, *_lines([*document.summary, *document.sections], 2)])


def blocks_as_markdown(blocks: Sequence[Block]) -> str:
    """Render blocks."""
    return _joined(list(_lines(blocks, 3)))


def escaped(text: Line) -> str:
    """Escape special characters."""
    return SPECIAL.sub(lambda found: found[1] or f"\\{found[0]}", safe_line(plain(text)))


def _joined(lines: Sequence[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _lines(blocks: Sequence[Block], level: int) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, Paragraph):
            yield ("**Error:** " if block.style == "error" else "") + _text(block)
            yield ""
        elif isinstance(block, Items):
            for place, lines in enumerate(block.lines(), 1):
                mark = f"{place}. " if block.numbered else "- "
                yield mark + f"  \n{' ' * len(mark)}".join(map(escaped, lines))
            yield ""
        elif isinstance(block, Figures):
            for one in block.figures:
                yield f"- {escaped(one.label)}: **{escaped(one.value)}**" + (f" ({escaped(one.note)})" * bool(one.note))
            yield ""
        elif isinstance(block, Details):
            summary = f"<summary>{html.escape(safe_line(block.title))}</summary>"
            yield from ("<details>", summary, "", *_lines(block.blocks, level), "</details>", "")
        elif isinstance(block, Section):
            below = list(_lines([*block.blocks, *block.sections], level + 1))
            if below:  # empty if the section has only charts
                yield from (f"{'#' * min(level, 6)} {escaped(block.title)}", "", *below)


def _text(paragraph: Paragraph) -> str:
    """Escaped text; quoted output stays as it is and becomes a code block."""
    parts: list[str] = []
    for is_code, lines in groupby(safe(plain(paragraph.text)).split("\n"), lambda line: line.startswith(CODE)):
        text = "\n".join(lines)
        parts.append(text if is_code else "→ " * bool(parts) + escaped(text.strip()))
    return "\n\n".join(parts)


def _table(table: Table) -> Iterator[str]:
    if table.note:
        yield from (escaped(table.note), "")
    yield f"| {' | '.join(escaped(column.heading) for column in table.columns)} |"
    yield f"| {' | '.join(':--' if column.kind == 'text' else '--:' for column in table.columns)} |"
    for row in table.texts():
        yield f"| {' | '.join(map(_indented, row))} |"
    yield ""


def _indented(text: str) -> str:
    """Escaped text whose indent is made of no-break spaces, which Markdown keeps."""
    depth = len(text) - len(text.lstrip(" "))
    return "\u00a0" * depth + escaped(text.strip(" "))
