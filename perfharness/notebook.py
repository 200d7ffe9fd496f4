"""How results show themselves in a notebook."""

from __future__ import annotations

from importlib import import_module


def notebook_html(result: object) -> str | None:
    """HTML of a result; None: as text."""
    renderer = import_module("perfharness.render.report.notebook")  # above those that ask, and slow to import
    html: str | None = renderer.result_html(result)
    return html
