"""Reports as PDF, made by typst."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from perfharness.distribution import install_command
from perfharness.errors import ResultError, ToolNotFoundError
from perfharness.files import replacing
from perfharness.render.blocks import (
    Block,
    Chart,
    Details,
    Document,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    kind_of,
    plain,
)
from perfharness.render.text import safe, safe_line

PADDING = re.compile(" {3,}")
"""Blanks that align columns on a terminal."""

TEMPLATE = Path(__file__).parent / "templates" / "report.typ"


def require_typst() -> None:
    """Raise `ToolNotFoundError` if typst is not installed."""
    if find_spec("typst") is None:
        raise ToolNotFoundError(f"A PDF report needs typst. Install it: {install_command('pdf')}.")


def write_pdf(document: Document, path: Path) -> Path:
    """Write a report, with details unfolded. Raises `ResultError`, `ToolNotFoundError`."""
    require_typst()
    import typst

    with tempfile.TemporaryDirectory(prefix="perfharness-") as name:
        folder = Path(name)
        shutil.copy(TEMPLATE, folder / "report.typ")
        content = {
            "title": safe_line(document.title),
            "subtitle": safe_line(document.subtitle),
            "summary": list(_blocks(document.summary, folder)),
            "sections": list(_blocks(document.sections, folder)),
        }
        (folder / "document.json").write_bytes(orjson.dumps(content))
        try:
            made = typst.compile(folder / "report.typ", root=folder)
        except RuntimeError as error:
            raise ResultError(f"typst failed: {str(error).splitlines()[0]}") from error
    with replacing(path) as temporary:
        temporary.write_bytes(made)
    return path


def _blocks(blocks: Sequence[Block], folder: Path) -> Iterator[dict[str, Any]]:
    """Blocks for the template; charts are written into the folder."""
    import vl_convert

    for block in blocks:
        content: dict[str, Any] = {}
        if isinstance(block, Table):
            content = {
                "note": safe_line(block.note),
                "headings": [safe_line(column.heading) for column in block.columns],
                "texts": [column.kind == "text" for column in block.columns],
                "rows": block.texts(),
            }
        elif isinstance(block, Paragraph):
            content = {"text": safe(plain(block.text)), "style": block.style}
        elif isinstance(block, Items):
            content = {
                "entries": [[PADDING.sub("  ", safe_line(plain(line))) for line in entry] for entry in block.lines()],
                "numbered": block.numbered,
            }
        elif isinstance(block, Figures):
            content = {
                "figures": [[safe_line(text) for text in (one.label, one.value, one.note)] for one in block.figures]
            }
        elif isinstance(block, Chart):
            file = folder / f"chart-{len(list(folder.iterdir()))}.svg"
            file.write_text(vl_convert.vegalite_to_svg(block.picture.specification()), encoding="utf-8")
            content = {
                "file": file.name,
                "title": safe_line(block.picture.title),
                "notes": [safe_line(note) for note in block.picture.notes],
                "small": block.small,
            }
        elif isinstance(block, Details | Section):
            below = [*block.blocks, *(block.sections if isinstance(block, Section) else ())]
            content = {"title": safe_line(block.title), "blocks": list(_blocks(below, folder))}
        yield {"kind": kind_of(block), **content}
