"""Results in a notebook."""

from __future__ import annotations

from importlib import import_module


def notebook_html(result: object) -> str | None:
    """Return HTML of a result, or None to show it as text."""
    renderer = import_module("perfharness.render.report.notebook")  # a higher layer, and slow to import
    html: str | None = renderer.result_html(result)
    return html
