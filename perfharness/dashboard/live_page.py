"""Live: what is running, once a second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from dash import Dash, Input, Output, Patch, State, dcc, html

from perfharness.dashboard.known import KnownRuns
from perfharness.dashboard.live import Panel, Points, Running, Watch
from perfharness.dashboard.parts import GRAPH, Component, Query, address, chart_layout, first, query_of, sentence
from perfharness.render.charts.drawing import LINE_PALETTE, short_label
from perfharness.render.numbers import NOT_MEASURED, duration

PERIOD_MS = 1000
PANEL_PX, AXIS_PX, TITLE_SHARE = 150, 50, 0.15
"""Height of a panel and of the axis below; share of a panel above its lines, for its title."""

TITLE = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "yanchor": "bottom", "showarrow": False}
LEGEND = {"x": 0, "yanchor": "top", "bgcolor": "rgba(255, 255, 255, 0.6)", "font": {"size": 10}}
HIDDEN = {"height": 0, "overflow": "hidden"}

SHOWN_S = 600
"""Lines show the last ten minutes."""

LABEL_WIDTH = 32


def layout(query: Query, known: KnownRuns) -> list[Component]:
    """The page, which a callback fills."""
    del query, known
    return [
        dcc.Interval(id="tick", interval=PERIOD_MS),
        dcc.Store(id="drawn"),
        html.Div(sentence("Looking for what is running …"), id="live"),
        dcc.Graph(id="lines", figure=_figure([], None), config=GRAPH, style=HIDDEN, className="chart"),
    ]


def register(app: Dash, known: KnownRuns) -> None:
    """Each second facts and lines change; the chart's layout does not while it has the same panels: zooming stays."""
    watch = Watch(known)

    def tick(
        _: int | None, search: str, drawn: Sequence[str] | None
    ) -> tuple[Component, Any, dict[str, Any], list[str]]:
        asked = first(query_of(search), "folder")
        with watch.lock:
            running = watch.look()
            shown = next((one for one in running if str(one.folder) == asked), None) or next(iter(running), None)
            panels = [] if shown is None else [panel for panel in shown.panels() if any(panel.lines.values())]
            style = {"height": _height(panels)} if panels else HIDDEN
            figure: Any = _figure(panels, shown)
            draws = [str(shown and shown.folder), *(panel.title for panel in panels)]
            if draws == drawn:
                lines, figure = figure["data"], Patch()
                figure["data"] = lines
            return _facts(running, shown, watch), figure, style, draws

    outputs = [Output("live", "children"), Output("lines", "figure"), Output("lines", "style"), Output("drawn", "data")]
    app.callback(outputs, Input("tick", "n_intervals"), Input("url", "search"), State("drawn", "data"))(tick)


def _facts(running: Sequence[Running], shown: Running | None, watch: Watch) -> list[Component]:
    found: list[Component] = []
    if shown is None:
        places = ", ".join(map(str, watch.places))
        found.append(sentence(f"Nothing is running in {places}, nor in the folders of the newest runs."))
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


def _height(panels: Sequence[Panel]) -> int:
    return len(panels) * PANEL_PX + AXIS_PX


def _figure(panels: Sequence[Panel], shown: Running | None) -> dict[str, Any]:
    """Plotly's figure: panels below each other over one time axis."""
    zero_s = 0.0 if shown is None else shown.start_s or 0.0
    made = chart_layout("", height=_height(panels))
    axis, share = made.pop("yaxis"), 1 / max(len(panels), 1)
    lines, titles = [], []
    for place, panel in enumerate(panels, 1):
        bottom, top = 1 - place * share, 1 - (place - 1 + TITLE_SHARE) * share
        made[f"yaxis{place}"] = {**axis, "domain": [bottom, top], "rangemode": "tozero"}
        suffix = "" if place == 1 else str(place)
        made[f"legend{suffix}"] = {**LEGEND, "y": top}
        titles.append({**TITLE, "y": top, "text": panel.title})
        for (name, points), color in zip(panel.lines.items(), cycle(LINE_PALETTE), strict=False):
            line = {"name": short_label(name, LABEL_WIDTH), "line": {"color": color, "width": 1.4}}
            where = {"yaxis": f"y{place}", "legend": f"legend{suffix}", "showlegend": len(panel.lines) > 1}
            lines.append({**line, **where, **_line(points, zero_s)})
    made["xaxis"] |= {"anchor": f"y{max(len(panels), 1)}", "title": {"text": "s"}}
    made["annotations"] = titles
    return {"data": lines, "layout": made}


def _line(points: Points, zero_s: float) -> dict[str, Any]:
    """The last minutes of a line, in seconds since the start."""
    from_s = max((at_s for at_s, _ in points), default=0.0) - SHOWN_S
    recent = [point for point in points if point[0] > from_s]
    x = [round(at_s - zero_s, 2) for at_s, _ in recent]
    y = [None if value is None else float(f"{value:.5g}") for _, value in recent]
    return {"mode": "lines+markers", "marker": {"size": 3}, "x": x, "y": y}
