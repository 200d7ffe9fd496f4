"""What all charts share: colours, axes, and the files made from them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.render.text import safe

Row = dict[str, Any]
"""A value that is None or NaN is a gap."""

Points = tuple[Sequence[float], Sequence[float | None]]
"""Seconds and values of a line."""

Styles = Mapping[str, tuple[str, Sequence[int]]]
"""Colour and dash of each line, in the order of the legend."""

Specification = dict[str, Any]

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's colours, distinguishable with every kind of colour vision."""

YELLOW = "#F0E442"
LINE_PALETTE = tuple(color for color in PALETTE if color != YELLOW)
"""Without yellow, which is invisible as a line on white."""

GREY, LIGHT_GREY, LIMIT = "#999999", "#dddddd", "#444444"
WARMUP = "#efe3cb"
SOLID, DASHED = (1, 0), (5, 3)

TITLE_WIDTH, NOTE_WIDTH, LEGEND_WIDTH = 110, 140, 36
"""Characters of a line."""

NUMBERS = ",.12~g"
"""Format of the numbers of an axis: shortest form, with commas, without an exponent up to 12 digits."""

WIDE_RANGE = 20
"""Switch to a logarithmic axis above this ratio of the largest to the smallest value."""

PIXEL_RATIO = 1.5
"""Pixels of a PNG for each unit of a specification."""

OWN = dict.fromkeys(("color", "fill", "stroke", "shape", "strokeDash"), "independent")
"""Scales of charts next to each other that have legends of their own."""

CONFIG: Specification = {
    "font": "Liberation Sans, Arial, DejaVu Sans, sans-serif",
    "lineBreak": "\n",
    "aria": False,  # descriptions of marks, in which the backslash of a title would be an escape
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
"""Vega-Lite's defaults of all charts."""


@dataclass(frozen=True)
class Picture:
    """One chart.

    Attributes:
        name: of its file, without the ending.
        chart: Vega-Lite, which refers to rows by name.
        rows: by those names.
        title, notes: the text around it.
    """

    name: str
    chart: Specification
    rows: Mapping[str, Sequence[Row]]
    title: str = ""
    notes: tuple[str, ...] = ()

    def specification(self) -> Specification:
        """JSON, in which gaps are null, for a page that sets title and notes itself."""
        made: Specification = orjson.loads(self.json())
        return made

    def json(self) -> str:
        """The specification as text."""
        return _json(self.chart, self.rows).decode()

    def save(self, path: Path) -> Path:
        """Write a `.png` with title and notes above the chart, atomically. Raises `ResultError`."""
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
    """The value without control characters in texts: some crash vl-convert."""
    if isinstance(part, str):
        return safe(part)
    if isinstance(part, Mapping):
        return {name: _printable(inside) for name, inside in part.items()}
    return [_printable(inside) for inside in part] if isinstance(part, list | tuple) else part


class Sheet:
    """A picture under construction: its rows by name (Altair copies rows inside of charts often), and its notes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self._rows: dict[str, list[Row]] = {}

    def chart(self, name: str, rows: list[Row], **size: Any) -> Any:
        """An Altair chart of rows, which are stored by name."""
        import altair as alt

        self._rows[f"{self.name}_{name}"] = rows
        return alt.Chart(alt.NamedData(f"{self.name}_{name}"), **size)

    def over_time(self, name: str, points: Mapping[str, Points], **size: Any) -> Any:
        """A chart of `seconds` and `value` of each `line`, with a row for each line."""
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
        return chart.encode(tooltip=["line:N", "seconds:Q", "value:Q"])

    def lines(self, name: str, points: Mapping[str, Points], styles: Styles, step: str, **size: Any) -> Any:
        """Lines over time; `step`: how they are interpolated."""
        import altair as alt

        dash = alt.StrokeDash("line:N").title(None)
        dash = dash.scale(domain=list(styles), range=[dash for _, dash in styles.values()])
        color = colors("line", {line: color for line, (color, _) in styles.items()})
        return self.over_time(name, points, **size).mark_line(interpolate=step).encode(color=color, strokeDash=dash)

    def made(self, chart: Any, title: str) -> Picture:
        """The picture of an Altair chart."""
        content = chart.to_dict(validate=False)
        rows = self._rows | content.pop("datasets", {})
        return Picture(self.name, content, rows, title, tuple(self.notes))


def colors(field: str, of: Mapping[str, str], **legend: Any) -> Any:
    """The colour of a mark by the values of a field, in this order; `legend`: its place."""
    import altair as alt

    return alt.Color(f"{field}:N").title(None).scale(domain=list(of), range=list(of.values())).legend(**legend)


def numbers(*fields: str) -> list[Any]:
    """Tooltips of numbers in five digits."""
    import altair as alt

    return [alt.Tooltip(f"{field}:Q", format=",.5~g") for field in fields]


def message(text: str, width: float, height: float) -> Any:
    """Text in place of a chart without data."""
    import altair as alt

    chart = alt.Chart(alt.InlineData(values=[{}]), width=width, height=height)
    lines = textwrap.wrap(text, max(20, int(width / 7)))
    return chart.mark_text(text=lines, color="#666666").encode(x=alt.value(width / 2), y=alt.value(height / 2))


def wrapped(name: str, width: int = LEGEND_WIDTH) -> str:
    """A name broken into lines of a legend."""
    return textwrap.fill(name, width)


def short_label(text: str, width: int) -> str:
    """A name in so many characters: its beginning and, of paths what says more, its end."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"
