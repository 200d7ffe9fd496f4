"""Reading charts: the marks of a specification with their rows, and the size of a PNG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from perfharness.render.charts.drawing import Picture


def units(part: Any) -> Iterator[dict[str, Any]]:
    """Every part of a specification that has a mark."""
    if isinstance(part, dict):
        if "mark" in part:
            yield part
        for inside in part.values():
            yield from units(inside)
    elif isinstance(part, list):
        for inside in part:
            yield from units(inside)


def marks(picture: Picture, kind: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Encoding and rows of every mark of a kind, gaps as None."""
    return [
        (
            one["encoding"],
            [{name: _gap(value) for name, value in row.items()} for row in picture.rows[one["data"]["name"]]],
        )
        for one in units(picture.chart)
        if one["mark"]["type"] == kind and "name" in one.get("data", {})
    ]


def _gap(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def notes(picture: Picture) -> list[str]:
    """What stands below a picture."""
    (content,) = picture.chart["vconcat"]
    title = content.get("title", {})
    return list(title["text"]) if isinstance(title, dict) and title.get("orient") == "bottom" else []
