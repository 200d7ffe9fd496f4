"""The tables of a report's document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfharness.render.report.document import Block, Details, Document, Section, Table


def tables_of(document: Document) -> dict[str, Table]:
    """All of them by their names, in order."""
    return {block.name: block for block in _blocks(document.summary, document.sections) if isinstance(block, Table)}


def _blocks(blocks: Sequence[Block], sections: Sequence[Section]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Details):
            yield from _blocks(block.blocks, ())
    for section in sections:
        yield from _blocks(section.blocks, section.sections)
