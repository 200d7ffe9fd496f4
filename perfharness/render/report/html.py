"""A report as one HTML file, which needs nothing else: style, charts and what draws them are inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfharness.files import replacing
from perfharness.render.report.document import (
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    cell_text,
)
from perfharness.render.text import safe, safe_line

TEMPLATES = Path(__file__).parent / "templates"
MAX_ROWS = 1000
"""Of a table on the page; Markdown has all."""


def write_html(document: Document, path: Path) -> Path:
    """Write the page, atomically. Raises `ResultError`."""
    content = html_page(document)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return path


def html_page(document: Document) -> str:
    """The whole page."""
    script, library = (TEMPLATES / "page.js").read_text(encoding="utf-8"), _library()
    has_charts = any(isinstance(block, Chart) for block in _all_blocks(document))
    page = _environment().get_template("page.html.jinja")
    made: str = page.render(
        document=document,
        style=_trusted((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        library=_trusted(library) if has_charts else "",
        script=_trusted(script),
        script_hashes=" ".join(_hash(one) for one in ([library, script] if has_charts else [script])),
        max_rows=MAX_ROWS,
    )
    return made


def html_fragment(blocks: Sequence[Block]) -> str:
    """Blocks for a notebook, without charts and scripts."""
    shown = [block for block in blocks if not isinstance(block, Chart)]
    made: str = _environment().get_template("fragment.html.jinja").render(shown=shown, max_rows=MAX_ROWS)
    return made


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, as vl-convert bundles them."""
    import vl_convert

    bundle = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    """Of an inline script, for the page's content security policy."""
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
    made.filters |= {"shown": cell_text, "line": safe_line, "visible": safe, "indent_of": _indent, "percent": _percent}
    made.tests |= {"kind": _is_kind}
    return made


def _trusted(text: str) -> Any:
    """Text of this package, which is not escaped."""
    import markupsafe

    return markupsafe.Markup(text)


KINDS: dict[str, type] = {
    "table": Table, "paragraph": Paragraph, "items": Items, "figures": Figures, "chart": Chart, "details": Details,
}  # fmt: skip


def _is_kind(block: Block, name: str) -> bool:
    return isinstance(block, KINDS[name])


def _indent(cell: Cell) -> int:
    """Depth of a text that begins with blanks."""
    return (len(cell) - len(cell.lstrip(" "))) // 2 if isinstance(cell, str) else 0


def _percent(cell: Cell, column: Column) -> str:
    """Width of a cell's bar; empty where it has none."""
    if not column.has_bar or not isinstance(cell, int | float):
        return ""
    return f"{100 * min(max(cell, 0.0), 1.0):.2f}"


def _all_blocks(document: Document) -> Iterator[Block]:
    stack: list[Section | Block] = [*document.summary, *document.sections]
    while stack:
        one = stack.pop()
        if isinstance(one, Section):
            stack += [*one.blocks, *one.sections]
            continue
        if isinstance(one, Details):
            stack += one.blocks
        yield one
