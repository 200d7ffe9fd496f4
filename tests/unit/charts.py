"""Reading charts: the rows of their lines, and whether Vega-Lite accepts them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import vl_convert

from perfharness.cli.main import run
from perfharness.render.charts.drawing import Picture


def report_charts(source: Path) -> dict[str, Any]:
    """The charts of the page that `report` writes, by name."""
    page = source.parent / f"{source.name}-charts.html"
    assert run(["report", str(source), "-o", str(page)]) == 0
    found = re.findall(r'data-name="(.*?)".*?<script type="application/json">(.*?)</script>', page.read_text(), re.S)
    return {name: json.loads(text) for name, text in found}


def lines(picture: Picture, of: str) -> dict[str, list[tuple[float, float | None]]]:
    """Seconds and values of every line of a panel, by name; gaps are None."""
    return {
        row["line"]: [
            (at, None if value is None or math.isnan(value) else value)
            for at, value in zip(row["seconds"], row["value"], strict=True)
        ]
        for row in picture.rows[f"{picture.name}_{of}"]
    }


def drawn(picture: Picture) -> str:
    """The chart as SVG. Raises `ValueError` where Vega-Lite refuses it."""
    return str(vl_convert.vegalite_to_svg(json.dumps(picture.specification())))
