"""Shared by all charts: colours, axes, and writing of files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.render.text import safe


class _Altair:
    """Altair, imported at first use because that is slow."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("altair"), name)


alt: Any = _Altair()

Row = dict[str, Any]
"""Row of a chart; None and NaN are gaps."""

Points = tuple[Sequence[float], Sequence[float | None]]
"""Seconds and values."""

Styles = Mapping[str, tuple[str, Sequence[int]]]
"""Colour and dash of each line, in legend order."""

Specification = dict[str, Any]

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Colours of Okabe and Ito, distinguishable with colour blindness."""

YELLOW = "#F0E442"
LINE_PALETTE = tuple(color for color in PALETTE if color != YELLOW)
"""Without yellow, which is hard to see as a line on white."""

GREY, LIGHT_GREY, LIMIT = "#999999", "#dddddd", "#444444"
WARMUP = "#efe3cb"
SOLID, DASHED = (1, 0), (5, 3)

TITLE_WIDTH, NOTE_WIDTH, LEGEND_WIDTH = 110, 140, 36
"""Characters per line."""

NUMBERS = ",.12~g"
"""Number format of axes: shortest form, with commas, up to 12 digits without exponent."""

WIDE_RANGE = 20
"""Ratio of largest to smallest value above which an axis is logarithmic."""

PIXEL_RATIO = 1.5
"""PNG pixels per unit of a chart."""

BAR_TEXT_WIDTH = "max(1, scale('x', datum.end) - scale('x', datum.start) - 4)"
"""Vega expression: width of a bar in pixels, which limits its text at every zoom."""

OWN = dict.fromkeys(("color", "fill", "stroke", "shape", "strokeDash"), "independent")
"""Scale resolution that gives each chart its own legend."""

CONFIG: Specification = {
    "font": "Liberation Sans, Arial, DejaVu Sans, sans-serif",
    "lineBreak": "\n",
    "aria": False,  # a backslash in a title would be an escape in descriptions of marks
    "padding": 12,
    "view": {"stroke": None},
    "concat": {"spacing": 14},
    "axis": {
        "gridColor": "#eeeeee",
        "domainColor": "#888888",
        "tickColor": "#888888",
        "labelLimit": 300,
        "labelSeparation": 4,
        "titleFontWeight": "normal",
    },
    "legend": {"title": None, "labelLimit": 300, "symbolLimit": 0, "titleFontWeight": "normal"},
    "title": {
        "anchor": "start",
        "fontSize": 13,
        "fontWeight": "normal",
        "limit": 2000,
        "subtitleColor": "#555555",
        "subtitleFontSize": 10,
    },
    "line": {"strokeCap": "butt", "strokeWidth": 1.4},
}


@dataclass(frozen=True)
class Picture:
    """Chart with its title and notes.

    Attributes:
        name: file name, without suffix.
        chart: Vega-Lite specification that refers to rows by name.
        rows: rows by name.
    """

    name: str
    chart: Specification
    rows: Mapping[str, Sequence[Row]]
    title: str = ""
    notes: tuple[str, ...] = ()

    def specification(self) -> Specification:
        """Vega-Lite without title and notes, with null for gaps."""
        made: Specification = orjson.loads(self.json())
        return made

    def json(self) -> str:
        """The specification as JSON."""
        return _json(self.chart, self.rows).decode()

    def save(self, path: Path) -> Path:
        """Write a PNG with title and notes, atomically. Raises `ResultError`."""
        import vl_convert

        notes = [line for note in self.notes for line in textwrap.wrap(note, NOTE_WIDTH, subsequent_indent="    ")]
        title = {"text": textwrap.wrap(self.title, TITLE_WIDTH), "subtitle": notes}
        text = _json({**self.chart, "title": title}, self.rows).decode()
        try:
            content = vl_convert.vegalite_to_png(text, scale=PIXEL_RATIO, allowed_base_urls=[])
        except ValueError as error:
            raise ResultError(f"{path.name} cannot be drawn: {str(error).splitlines()[0]}") from error
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        return path


def _json(chart: Specification, rows: Mapping[str, Sequence[Row]]) -> bytes:
    return orjson.dumps(_printable({**chart, "datasets": rows, "config": CONFIG}))


def _printable(part: Any) -> Any:
    """Escape control characters in texts, because some crash vl-convert."""
    if isinstance(part, str):
        return safe(part)
    if isinstance(part, Mapping):
        return {name: _printable(inside) for name, inside in part.items()}
    return [_printable(inside) for inside in part] if isinstance(part, list | tuple) else part


class Sheet:
    """Builder of a picture. Rows are kept outside of Altair charts, which would copy them often."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self._rows: dict[str, list[Row]] = {}

    def chart(self, name: str, rows: list[Row], **size: Any) -> Any:
        """Make an Altair chart of rows."""
        self._rows[f"{self.name}_{name}"] = rows
        return alt.Chart(alt.NamedData(f"{self.name}_{name}"), **size)

    def over_time(self, name: str, points: Mapping[str, Points], **size: Any) -> Any:
        """Make a chart with the fields `line`, `place`, `seconds` and `value`."""
        rows: list[Row] = [
            {
                "line": line,
                "place": place,
                "seconds": [round(at, 4) for at in seconds],
                "value": [None if value is None else float(f"{value:.6g}") for value in values],
            }
            for place, (line, (seconds, values)) in enumerate(points.items())
        ]
        chart = self.chart(name, rows, **size).transform_flatten(["seconds", "value"])
        return chart.encode(tooltip=fields("line:N", "seconds:Q", "value:Q"))

    def lines(self, name: str, points: Mapping[str, Points], styles: Styles, step: str, **size: Any) -> Any:
        """Make a chart of lines over time; `step` is Vega's interpolation."""
        dash = alt.StrokeDash("line:N").title(None)
        dash = dash.scale(domain=list(styles), range=[dash for _, dash in styles.values()])
        color = colors("line", {line: color for line, (color, _) in styles.items()})
        return self.over_time(name, points, **size).mark_line(interpolate=step).encode(color=color, strokeDash=dash)

    def made(self, chart: Any, title: str) -> Picture:
        """Make a picture of an Altair chart."""
        content = chart.to_dict(validate=False)
        rows = self._rows | content.pop("datasets", {})
        return Picture(self.name, content, rows, title, tuple(self.notes))


def colors(field: str, of: Mapping[str, str], **legend: Any) -> Any:
    """Colour encoding of a field: `of` maps its values to colours, in legend order."""
    return alt.Color(f"{field}:N").title(None).scale(domain=list(of), range=list(of.values())).legend(**legend)


def fields(*names: str) -> list[Any]:
    """Tooltips of fields like `stage:N`. Given plain names, Altair takes 8 ms each to make them."""
    return [alt.Tooltip(name) for name in names]


def numbers(*names: str) -> list[Any]:
    """Tooltips of numbers with five digits."""
    return [alt.Tooltip(f"{name}:Q", format=",.5~g") for name in names]


def message(text: str, width: float, height: float) -> Any:
    """Text in place of a chart without data."""
    chart = alt.Chart(alt.InlineData(values=[{}]), width=width, height=height)
    lines = textwrap.wrap(text, max(20, int(width / 7)))
    return chart.mark_text(text=lines, color="#666666").encode(x=alt.value(width / 2), y=alt.value(height / 2))


def wrapped(name: str, width: int = LEGEND_WIDTH) -> str:
    """Wrap a name for a legend."""
    return textwrap.fill(name, width)


def short_label(text: str, width: int) -> str:
    """Shorten a name by its middle; keep more of the end, which says more in paths."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"
