"""Shared by all charts: colours, layout, and the files made from one specification."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.telemetry import Float64
from perfharness.render.text import safe

Row = dict[str, Any]
"""A value that is None or NaN is a gap."""

Specification = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's colours, distinguishable with every kind of colour vision."""

YELLOW = "#F0E442"
LINE_PALETTE = tuple(color for color in PALETTE if color != YELLOW)
"""Without yellow, which is invisible as a line on white."""

GREY, LIGHT_GREY, LIMIT = "#999999", "#dddddd", "#444444"
TITLE_WIDTH, NOTE_WIDTH, LEGEND_WIDTH = 120, 165, 36
"""Characters of a line."""

NUMBERS = ",.12~g"
"""Format of the numbers of an axis: shortest form, with commas, without an exponent up to 12 digits."""

PIXEL_RATIO = 1.5
"""Pixels of a PNG for each unit of a specification."""

LESS = "\ue000"
"""Replaces `<` in the JSON that vl-convert embeds in a page."""

CONFIG: dict[str, Any] = {
    "font": "Liberation Sans, Arial, DejaVu Sans, sans-serif",
    "lineBreak": "\n",
    "aria": False,  # descriptions of marks, in which the backslash of a title would be an escape
    "padding": 12,
    "view": {"stroke": None},
    "concat": {"spacing": 14},
    "axis": {"gridColor": "#eeeeee", "domainColor": "#888888", "tickColor": "#888888", "labelLimit": 300,
             "labelSeparation": 4, "titleFontWeight": "normal", "titleFontSize": 11, "labelFontSize": 10},
    "legend": {"labelLimit": 420, "symbolLimit": 0, "titleLimit": 420, "titleFontWeight": "normal",
               "titleFontSize": 11, "labelFontSize": 10, "offset": 14},
    "title": {"anchor": "start", "fontSize": 13, "fontWeight": "normal", "limit": 2000},
    "line": {"strokeCap": "butt"},
}  # fmt: skip
"""Vega-Lite's defaults of all charts."""


@dataclass(frozen=True)
class Picture:
    """One chart.

    Attributes:
        name: of its file, without the ending.
        chart: Vega-Lite, which refers to rows by name.
        rows: by those names.
        content, title, notes: what `chart` is made of, for a page that sets title and notes itself.
    """

    name: str
    chart: Specification
    rows: Mapping[str, Sequence[Row]]
    content: Specification | None = None
    title: str = ""
    notes: tuple[str, ...] = ()

    def specification(self) -> Specification:
        """All of it as JSON has it (gaps are null), for a page; without title and notes where these are apart."""
        content = self.chart if self.content is None else self.content
        whole = {"$schema": SCHEMA, **content, "datasets": self.rows, "config": CONFIG}
        made: Specification = orjson.loads(orjson.dumps(_printable(whole)))
        return made

    def save(self, path: Path) -> Path:
        """Write a `.png`, `.svg`, `.pdf` or `.html`, atomically. Raises `ResultError`."""
        specification = {"$schema": SCHEMA, **self.chart, "datasets": self.rows, "config": CONFIG}
        text = orjson.dumps(_printable(specification)).decode()
        try:
            content = _convert(text, path.suffix)
        except ValueError as error:
            raise ResultError(f"{path.name} cannot be drawn: {str(error).splitlines()[0]}") from error
        with replacing(path, follow=False) as temporary:
            temporary.write_bytes(content)
        return path


def draw(pictures: Sequence[Picture], folder: Path, page: str) -> list[Path]:
    """Write every picture as a PNG, and all of them as one interactive page. Returns the files.

    Args:
        page: name of the page, without the ending.

    Raises `ResultError` where nothing can be written.
    """
    if not pictures:
        return []
    whole = column([picture.chart for picture in pictures], spacing=40)
    rows = {name: rows for picture in pictures for name, rows in picture.rows.items()}
    written = [picture.save(folder / f"{picture.name}.png") for picture in pictures]
    return [*written, Picture(page, whole, rows).save(folder / f"{page}.html")]


def _printable(part: Any) -> Any:
    """The value without control characters in texts: some crash vl-convert."""
    if isinstance(part, str):
        return safe(part)
    if isinstance(part, Mapping):
        return {name: _printable(inside) for name, inside in part.items()}
    return [_printable(inside) for inside in part] if isinstance(part, list | tuple) else part


def _convert(text: str, ending: str) -> bytes:
    """Vega-Lite, as JSON, to a file of that ending. Raises `ValueError`."""
    import vl_convert

    if ending == ".png":
        return bytes(vl_convert.vegalite_to_png(text, scale=PIXEL_RATIO, allowed_base_urls=[]))
    if ending == ".pdf":
        return bytes(vl_convert.vegalite_to_pdf(text, allowed_base_urls=[]))
    if ending == ".svg":
        return str(vl_convert.vegalite_to_svg(text, allowed_base_urls=[])).encode()
    page = str(vl_convert.vegalite_to_html(text.replace("<", LESS), bundle=True))
    return page.replace(LESS, "\\u003c").encode()  # a name in the data must not end the script element


class Sheet:
    """One picture under construction: its rows by name, and its notes.

    Pictures are composed of plain Vega-Lite, since Altair copies a whole composition at each change.
    """

    def __init__(self, name: str) -> None:
        import altair

        self.alt: Any = altair
        self.name = name
        self.notes: list[str] = []
        self._rows: dict[str, list[Row]] = {}

    def chart(self, name: str, rows: list[Row], **size: float) -> Any:
        """An Altair chart of rows, which are stored by name."""
        self._rows[f"{self.name}_{name}"] = rows
        return self.alt.Chart(self.alt.NamedData(f"{self.name}_{name}"), **size)

    def steps(
        self,
        name: str,
        rows: list[Row],
        x: Any,
        y: Any,
        styles: Mapping[str, tuple[str, Sequence[int]]],
        interpolate: str = "step-after",
        **size: float,
    ) -> Specification:
        """Lines of steps over time, of rows of `line`, `seconds` and `value`.

        Args:
            styles: color and dash by line, in the order of the legend.
        """

        def by_line(channel: Any, place: int) -> Any:
            values = [one[place] for one in styles.values()]
            return channel("line:N", title=None, scale=self.alt.Scale(domain=list(styles), range=values))

        marks = self.chart(name, rows, **size).mark_line(interpolate=interpolate, strokeWidth=1.4)
        color, dash = by_line(self.alt.Color, 0), by_line(self.alt.StrokeDash, 1)
        return unit(marks.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=["line:N", "seconds:Q", "value:Q"]))

    def quantity(self, title: str | Sequence[str], top: float | None = None, *, zero: bool = True, **axis: Any) -> Any:
        """The vertical axis of `value`; `top`: its largest value."""
        scale = self.alt.Scale(zero=zero, domainMax=self.alt.Undefined if top is None else top)
        return self.alt.Y("value:Q", title=title, axis=self.alt.Axis(format=NUMBERS, **axis), scale=scale)

    def colors(self, field: str, colors: Mapping[str, str], *, legend: bool = True, **where: Any) -> Any:
        """The colour of a mark by the values of a field, in this order; `where`: of the legend, which has no title."""
        scale = self.alt.Scale(domain=list(colors), range=list(colors.values()))
        return self.alt.Color(
            f"{field}:N", title=None, scale=scale, legend=self.alt.Legend(**where) if legend else None
        )

    def made(self, content: Specification, title: str) -> Picture:
        """The picture."""
        notes = tuple(self.notes)
        return Picture(self.name, titled(content, title, notes), self._rows, content, title, notes)


def line_rows(line: str, seconds: Float64, values: Float64) -> list[Row]:
    """Rows of `Sheet.steps` of one line."""
    points = zip(seconds.tolist(), values.tolist(), strict=True)
    return [{"seconds": time, "value": value, "line": line} for time, value in points]


def unit(chart: Any) -> Specification:
    """The Vega-Lite of an Altair chart."""
    made: Specification = chart.to_dict(validate=False)
    return {name: part for name, part in made.items() if name not in ("$schema", "config")}


def layered(layers: Sequence[Specification], width: float, height: float, **more: Any) -> Specification:
    """Charts in one frame, the first behind."""
    inside = [{name: part for name, part in layer.items() if name not in ("width", "height")} for layer in layers]
    return {"layer": inside, "width": width, "height": height, **more}


OWN = {"scale": dict.fromkeys(("color", "fill", "stroke", "shape", "strokeDash"), "independent")}


def column(charts: Sequence[Specification], **more: Any) -> Specification:
    """Charts below each other, each with its own legend."""
    return {"vconcat": list(charts), "resolve": OWN, **more}


def grid(charts: Sequence[Specification], columns: int, align: str = "all") -> Specification:
    """Charts in rows, each with its own legend; `each`: columns are as wide as they need, else all equal."""
    return {"concat": list(charts), "columns": columns, "align": align, "resolve": OWN}


def titled(content: Specification, title: str, notes: Sequence[str] = ()) -> Specification:
    """The content, its title above, the notes in small print below."""
    if notes:
        lines = [line for note in notes for line in textwrap.wrap(note, NOTE_WIDTH, subsequent_indent="    ")]
        below = {"text": lines, "orient": "bottom", "fontSize": 10, "color": "#555555", "offset": 10}
        content = {"vconcat": [content], "title": below}
    return {"vconcat": [content], "title": {"text": textwrap.wrap(title, TITLE_WIDTH)}}


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


def message(text: str, width: float, height: float) -> Specification:
    """Text in place of a chart without data."""
    mark = {"type": "text", "text": textwrap.wrap(text, max(20, int(width / 7))), "color": "#666666", "fontSize": 11}
    position = {"x": {"value": width / 2}, "y": {"value": height / 2}}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": position, "width": width, "height": height}
