"""What the pages share: the query of an address, links, pickers and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from dash import dcc, html

from perfharness.render.charts.drawing import CONFIG, PALETTE
from perfharness.render.numbers import NOT_MEASURED
from perfharness.runs.history import Row

Query = dict[str, list[str]]
"""Of an address: the values of each name."""

Component = Any
"""Of Dash, which has no types."""

PAGES = {"/": "History", "/compare": "Compare", "/run": "Run", "/live": "Live"}
OFFERED = 500
"""Newest runs that a list offers."""

SHORT_COMMIT = 8


GRAPH = {
    "displaylogo": False,
    "displayModeBar": True,
    "responsive": True,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "perfharness"},
}
"""Buttons of a chart: none that sends it to Plotly's cloud."""


def chart_layout(title: str, **more: Any) -> dict[str, Any]:
    """Plotly's layout of a chart, in the colours and font of the report's charts."""
    of = CONFIG["axis"]
    axis = {"gridcolor": of["gridColor"], "linecolor": of["domainColor"], "automargin": True, "zeroline": False}
    return {
        "font": {"family": CONFIG["font"], "size": 12},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "margin": {"l": 60, "r": 12, "t": 12, "b": 40},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#888", "activecolor": PALETTE[0]},
        "xaxis": axis,
        "yaxis": {**axis, "title": {"text": title}},
        **more,
    }


def query_of(search: str | None) -> Query:
    """`?run=a&run=b` -> `{"run": ["a", "b"]}`."""
    return parse_qs((search or "").removeprefix("?"), keep_blank_values=True)


def address(page: str, query: Mapping[str, Sequence[str]]) -> str:
    """The address of a page; names without values are left out."""
    text = urlencode({name: values for name, values in query.items() if values}, doseq=True)
    return f"{page}?{text}" if text else page


def first(query: Query, name: str, default: str = "") -> str:
    """The first value of a name."""
    return query.get(name, [default])[0]


def navigation(current: str) -> Component:
    """Links to all pages."""
    links = [
        html.Li(dcc.Link(name, href=page, className="current" if page == current else ""))
        for page, name in PAGES.items()
    ]
    return html.Nav(html.Ol(links), className="contents", **{"aria-label": "Pages"})


def sentence(text: str, style: str = "note") -> Component:
    """A line of text in a style of the report."""
    return html.P(text, className=style)


def picker(label: str, name: str, options: Sequence[Any], value: Any, *, many: bool = False, empty: str = "") -> Any:
    """A list to choose from, under its label.

    Args:
        name: the id of the list.
        many: whether several can be chosen, or none.
        empty: what is shown then.
    """
    chosen = dcc.Dropdown(options, value, id=name, multi=many, clearable=many, placeholder=empty)
    return html.Label([html.Span(label), chosen], htmlFor=name, className="picker")


def frame(source: str, title: str) -> Component:
    """A page of the project inside of this one."""
    return html.Iframe(src=source, title=title, className="page")


def table(name: str, headings: Sequence[Component], rows: Iterable[Sequence[Component]], numbers: int) -> Component:
    """A table as the report has it; the last columns are `numbers`."""
    kinds = ["short"] * (len(headings) - numbers) + ["number"] * numbers
    head = [html.Th(one, scope="col", className=kind) for one, kind in zip(headings, kinds, strict=True)]
    body = [html.Tr([html.Td(one, className=kind) for one, kind in zip(cells, kinds, strict=True)]) for cells in rows]
    content = html.Table([html.Thead(html.Tr(head)), html.Tbody(body)])
    return html.Div(content, className="scroll", tabIndex=0, role="region", **{"aria-label": name})


def cell(row: Row, name: str) -> str:
    """A fact of a run, in few characters."""
    value = row.get(name)
    if value is None:
        return NOT_MEASURED
    if name == "created":
        return str(value)[:19].replace("T", " ")
    if name == "commit":
        commit, _, changes = str(value).partition(" ")
        return commit[:SHORT_COMMIT] + ("+" if changes else "")
    if name == "script":
        return Path(str(value)).name
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def label_of(row: Row) -> str:
    """A run in a list."""
    what = dict.fromkeys(cell(row, name) for name in ("script", "model", "backend", "commit") if row.get(name))
    return " ".join([cell(row, "created"), cell(row, "kind"), *what])


def run_options(rows: Sequence[Row], chosen: Sequence[str]) -> list[dict[str, str]]:
    """The newest runs and those that are chosen, for a list."""
    offered = [row for place, row in enumerate(rows) if place < OFFERED or row["id"] in chosen]
    return [{"label": label_of(row), "value": row["id"]} for row in offered]
