"""The tables of a report's document."""

from __future__ import annotations

from perfharness.render.blocks import Document, Table, walk


def tables_of(document: Document) -> dict[str, Table]:
    """All of them by their names, in order."""
    return {block.name: block for block in walk([*document.summary, *document.sections]) if isinstance(block, Table)}
