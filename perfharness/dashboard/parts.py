"""Shared parts of the pages: queries, links, pickers, charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from dash import Dash, Input, Output, State, dcc, html

from perfharness.render.charts.drawing import Picture
from perfharness.render.numbers import NOT_MEASURED
from perfharness.runs.history import Row

Query = dict[str, list[str]]
"""Query of an address: values by name."""

Component = Any
"""Dash component (Dash has no types)."""

PAGES = {"/": "History", "/compare": "Compare", "/run": "Run", "/live": "Live"}
OFFERED = 500
"""Number of newest runs in a list."""

SHORT_COMMIT = 8

HOW_TO_ZOOM = "Drag to move, Ctrl and wheel to zoom, double-click to reset."

SHOW_CHART = """async (text, name) => {
    const place = document.getElementById(name), chart = JSON.parse(text), { datasets, ...drawing } = chart ?? {};
    if ((place.hidden = !chart)) return !(place.drawn = place.shown = null);
    const shown = JSON.stringify([drawing, place.clientWidth]), isNew = place.shown !== shown;
    const state = (await place.drawn)?.view.getState({ data: () => false, signals: (one) => one === "zoom_seconds" });
    const { view } = await (isNew ? drawChart(place, chart) : place.drawn), zoomed = state?.signals.zoom_seconds;
    place.shown = shown;
    for (const [rows, values] of Object.entries(isNew ? {} : datasets)) view.data(rows, values);
    return (zoomed ? view.signal("zoom_seconds", zoomed) : view).runAsync().then(() => false);
}"""
"""Draw the specification in a store. If only its rows changed, replace them and keep the zoom."""


def zoom(*channels: str) -> dict[str, Any]:
    """Vega-Lite parameter that pans and zooms; the wheel alone scrolls the page."""
    select = {"type": "interval", "encodings": channels or ("x", "y"), "zoom": "wheel![event.ctrlKey]"}
    return {"name": "zoom", "select": select, "bind": "scales"}


def chart(name: str, picture: Picture | None = None) -> list[Component]:
    """Container of a chart, and the store that fills it."""
    store = dcc.Store(id=f"{name}-chart", data=picture and specification(picture))
    return [store, html.Div(id=name, className="picture"), sentence(HOW_TO_ZOOM)]


def specification(picture: Picture) -> str:
    """JSON for a store, as text: Dash walks through every value of a dict."""
    options = {"renderer": "canvas", "ast": False, "downloadFileName": "perfharness", "scaleFactor": 2}
    more = {"description": picture.title, "usermeta": {"embedOptions": options}}
    return replace(picture, chart={**picture.chart, **more}).json()


def register_chart(app: Dash, name: str) -> None:
    """Draw the store's specification in the browser."""
    app.clientside_callback(SHOW_CHART, Output(name, "hidden"), Input(f"{name}-chart", "data"), State(name, "id"))


def query_of(search: str | None) -> Query:
    """`?run=a&run=b` -> `{"run": ["a", "b"]}`."""
    return parse_qs((search or "").removeprefix("?"), keep_blank_values=True)


def address(page: str, query: Mapping[str, Sequence[str]]) -> str:
    """Address of a page; names without values are omitted."""
    text = urlencode({name: values for name, values in query.items() if values}, doseq=True)
    return f"{page}?{text}" if text else page


def first(query: Query, name: str, default: str = "") -> str:
    """First value of a name."""
    return query.get(name, [default])[0]


def navigation(current: str) -> Component:
    """Links to all pages."""
    links = [
        html.Li(dcc.Link(name, href=page, className="current" if page == current else ""))
        for page, name in PAGES.items()
    ]
    return html.Nav(html.Ol(links), className="contents", **{"aria-label": "Pages"})


def sentence(text: str, style: str = "note") -> Component:
    """Paragraph in a style of the report."""
    return html.P(text, className=style)


def picker(label: str, name: str, options: Sequence[Any], value: Any, *, many: bool = False, empty: str = "") -> Any:
    """Dropdown with its label.

    Args:
        name: id of the dropdown.
        many: whether several values, or none, can be chosen.
        empty: text shown without a value.
    """
    chosen = dcc.Dropdown(options, value, id=name, multi=many, clearable=many, placeholder=empty)
    return html.Label([html.Span(label), chosen], htmlFor=name, className="picker")


def frame(source: str, title: str) -> Component:
    """Frame with a page of the server."""
    return html.Iframe(src=source, title=title, className="page")


def table(name: str, headings: Sequence[Component], rows: Iterable[Sequence[Component]], numbers: int) -> Component:
    """Table in the style of the report; the last `numbers` columns are numeric."""
    kinds = ["short"] * (len(headings) - numbers) + ["number"] * numbers
    head = [html.Th(one, scope="col", className=kind) for one, kind in zip(headings, kinds, strict=True)]
    body = [html.Tr([html.Td(one, className=kind) for one, kind in zip(cells, kinds, strict=True)]) for cells in rows]
    content = html.Table([html.Thead(html.Tr(head)), html.Tbody(body)])
    return html.Div(content, className="scroll", tabIndex=0, role="region", **{"aria-label": name})


def cell(row: Row, name: str) -> str:
    """Short text of a fact of a run."""
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
    """Label of a run in a list."""
    what = dict.fromkeys(cell(row, name) for name in ("script", "model", "backend", "commit") if row.get(name))
    return " ".join([cell(row, "created"), cell(row, "kind"), *what])


def run_options(rows: Sequence[Row], chosen: Sequence[str]) -> list[dict[str, str]]:
    """Options: the newest runs and the chosen ones."""
    offered = [row for place, row in enumerate(rows) if place < OFFERED or row["id"] in chosen]
    return [{"label": label_of(row), "value": row["id"]} for row in offered]
