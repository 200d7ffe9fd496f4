"""Live page: running work, updated every second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dash import Dash, Input, Output, dcc, html

from perfharness.dashboard.known import KnownRuns
from perfharness.dashboard.live import Panel, Points, Running, Watch
from perfharness.dashboard.parts import (
    Component,
    Query,
    address,
    chart,
    first,
    query_of,
    register_chart,
    sentence,
    specification,
    zoom,
)
from perfharness.render.charts.drawing import LINE_PALETTE, NUMBERS, Picture, short_label
from perfharness.render.charts.over_time import HEIGHT, WIDTH
from perfharness.render.numbers import NOT_MEASURED, duration

PERIOD_MS = 1000
SHOWN_S = 600
"""Lines show the last ten minutes."""

LABEL_WIDTH = 32
PANEL = {
    "width": WIDTH,
    "height": HEIGHT,
    "transform": [{"flatten": ["seconds", "value"]}],
    "mark": {"type": "line", "point": {"size": 9}, "tooltip": True},
    "encoding": {
        "x": {"field": "seconds", "type": "quantitative", "title": "s", "scale": {"zero": False, "nice": False}},
        "y": {"field": "value", "type": "quantitative", "title": None, "axis": {"format": NUMBERS, "tickCount": 4}},
        "color": {"field": "line", "type": "nominal", "sort": None, "scale": {"range": LINE_PALETTE}},
    },
}
"""Vega-Lite of a panel."""


def layout(query: Query, known: KnownRuns) -> list[Component]:
    """Make the page; a callback fills it."""
    del query, known
    return [
        dcc.Interval(id="tick", interval=PERIOD_MS),
        html.Div(sentence("Looking for what is running …"), id="live"),
        *chart("lines"),
    ]


def register(app: Dash, known: KnownRuns) -> None:
    """Update facts and lines every second."""
    watch = Watch(known)

    def tick(_: int | None, search: str) -> tuple[Component, Component]:
        asked = first(query_of(search), "folder")
        with watch.lock:
            running = watch.look()
            shown = next((one for one in running if str(one.folder) == asked), None) or next(iter(running), None)
            panels = [] if shown is None else [panel for panel in shown.panels() if any(panel.lines.values())]
            picture = _picture(panels, shown) if shown and panels else None
            return _facts(running, shown, watch), picture and specification(picture)

    outputs = [Output("live", "children"), Output("lines-chart", "data")]
    app.callback(outputs, Input("tick", "n_intervals"), Input("url", "search"))(tick)
    register_chart(app, "lines")


def _facts(running: Sequence[Running], shown: Running | None, watch: Watch) -> list[Component]:
    found: list[Component] = []
    if shown is None:
        places = ", ".join(map(str, watch.places))
        found.append(sentence(f"Nothing is running in {places} or in the folders of the newest runs."))
    else:
        if len(running) > 1:
            links = [dcc.Link(one.title, href=address("/live", {"folder": [str(one.folder)]})) for one in running]
            found.append(html.P([part for link in links for part in (link, " ")], className="others"))
        ran = NOT_MEASURED if shown.start_s is None else duration(time.time() - shown.start_s)
        facts = {"running for": ran, **shown.facts()}
        found += [html.H2(shown.title), html.P(str(shown.places[0]), className="note")]
        found.append(
            html.Dl([html.Div([html.Dt(name), html.Dd(text)]) for name, text in facts.items()], className="figures")
        )
    found += [sentence(text, "warning") for text in watch.problems]
    for one in watch.ended:
        opened = (
            []
            if one.run_id is None
            else [" ", dcc.Link("Open its report.", href=address("/run", {"run": [one.run_id]}))]
        )
        found.append(html.P([f"{one.title} {one.how}.", *opened], className="ended"))
    return found


def _picture(panels: Sequence[Panel], shown: Running) -> Picture:
    """Stack the panels over one time axis. Lines and colors come from the rows, so new lines keep the zoom."""
    zero_s = shown.start_s or 0.0
    rows = {
        panel.title: [
            {"line": short_label(name, LABEL_WIDTH), **_recent(points, zero_s)} for name, points in panel.lines.items()
        ]
        for panel in panels
    }
    charts = [
        {**PANEL, "name": title, "title": {"text": title, "frame": "group"}, "data": {"name": title}} for title in rows
    ]
    scale = {"x": "shared", "color": "independent"}
    chart = {"vconcat": charts, "resolve": {"scale": scale}, "params": [{**zoom("x"), "views": list(rows)}]}
    return Picture("live", chart, rows, f"{shown.title} over time")


def _recent(points: Points, zero_s: float) -> dict[str, list[float | None]]:
    """Last `SHOWN_S` of a line, in seconds since the start."""
    from_s = max((at_s for at_s, _ in points), default=0.0) - SHOWN_S
    recent = [(round(at_s - zero_s, 2), value) for at_s, value in points if at_s > from_s]
    return {"seconds": [at_s for at_s, _ in recent], "value": [value for _, value in recent]}
