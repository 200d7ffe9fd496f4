"""Reports as self-contained HTML files."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.render.blocks import Block, Cell, Chart, Column, Document, cell_text, kind_of, plain, spans, walk
from perfharness.render.text import safe, safe_line

if TYPE_CHECKING:
    from perfharness.render.charts.drawing import Picture

TEMPLATES = Path(__file__).parent / "templates"
MAX_ROWS = 1000
"""Rows of a table on a page; Markdown has all."""


def write_html(document: Document, path: Path) -> Path:
    """Write a report atomically. Raises `ResultError`."""
    content = html_page(document)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return path


def draw(pictures: Sequence[Picture], folder: Path, page: str) -> list[Path]:
    """Write each picture as a PNG, and all as one page; return the files.

    Args:
        page: file name of the page, without suffix.

    Raises:
        ResultError: a file cannot be written.
    """
    if not pictures:
        return []
    written = [picture.save(folder / f"{picture.name}.png") for picture in pictures]
    document = Document(page.replace("_", " "), "", [Chart(picture) for picture in pictures])
    return [*written, write_html(document, folder / f"{page}.html")]


def html_page(document: Document) -> str:
    """Render a report."""
    script, library = (TEMPLATES / "page.js").read_text(encoding="utf-8"), chart_library()
    has_charts = any(isinstance(block, Chart) for block in walk([*document.summary, *document.sections]))
    page = _environment().get_template("page.html.jinja")
    made: str = page.render(
        document=document,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        library=_packed_library() if has_charts else "",
        script=Markup(script),
        script_hashes=" ".join(_hash(one) for one in ([library, script] if has_charts else [script])),
        max_rows=MAX_ROWS,
    )
    return made


def html_fragment(blocks: Sequence[Block]) -> str:
    """Render blocks for a notebook, without charts and scripts."""
    shown = [block for block in blocks if not isinstance(block, Chart)]
    made: str = _environment().get_template("fragment.html.jinja").render(shown=shown, max_rows=MAX_ROWS)
    return made


@cache
def chart_library() -> str:
    """Vega, Vega-Lite, Vega-Embed, and our `drawChart`."""
    return _bundle() + (TEMPLATES / "chart.js").read_text(encoding="utf-8")


@cache
def _packed_library() -> str:
    return base64.b64encode(gzip.compress(chart_library().encode(), mtime=0)).decode()


def _bundle() -> str:
    """Bundle of vl-convert, cached on disk because bundling is slow."""
    import vl_convert

    caches = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '')}/.cache"
    kept = Path(caches, "perfharness", f"vega-{version('vl-convert-python')}.js")
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    made = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    with suppress(OSError, ResultError):  # read-only home
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as temporary:
            temporary.write_text(made, encoding="utf-8")
    return made


def _hash(script: str) -> str:
    """Source of an inline script in the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _environment() -> Any:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "shown": cell_text,
        "line": safe_line,
        "markup": _markup,
        "indent_of": _indent,
        "percent": _percent,
        "kind": kind_of,
    }
    return made


def _indent(cell: Cell) -> int:
    """Indent of a text, in levels of two blanks."""
    text = plain(cell) if isinstance(cell, str | tuple) else ""
    return (len(text) - len(text.lstrip(" "))) // 2


def _percent(cell: Cell, column: Column) -> str:
    """Width of a cell's bar, or an empty text if it has none."""
    if not column.has_bar or not isinstance(cell, int | float):
        return ""
    return f"{100 * min(max(cell, 0.0), 1.0):.2f}"


def _markup(line: Any) -> Any:
    styled = Markup('<span class="{}">{}</span>')
    parts = (styled.format(one.style, safe(one.text)) if one.style else safe(one.text) for one in spans(line))
    return Markup("").join(parts)
