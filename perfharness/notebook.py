"""How results show themselves in a notebook: they ask here, and the package registers what draws them."""

from __future__ import annotations

from collections.abc import Callable

Renderer = Callable[[object], "str | None"]

_renderers: list[Renderer] = []


def show_with(renderer: Renderer) -> None:
    """Let results be shown by this function, which returns HTML, or None for what it does not know."""
    _renderers[:] = [renderer]


def notebook_html(result: object) -> str | None:
    """HTML of a result; None: as text."""
    return next((html for renderer in _renderers if (html := renderer(result)) is not None), None)
