"""History: a figure over the runs, with its changes, and a table of the runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from perfharness.dashboard.known import NO_HISTORY, KnownRuns
from perfharness.dashboard.parts import (
    GRAPH,
    Component,
    Query,
    address,
    cell,
    chart_layout,
    first,
    label_of,
    picker,
    query_of,
    sentence,
    table,
)
from perfharness.render.charts.drawing import GREY, LINE_PALETTE
from perfharness.render.numbers import change
from perfharness.runs.figures import ACCURACY_METRIC, METRICS
from perfharness.runs.history import ALIKE, FACTS, RULE, Row, changes_of, is_usable

FILTERS = ("script", "model", "backend", "precision", "machine", "commit")
CHOICES = (*FILTERS, "stage", "metric")
COLUMNS = ("created", "kind", *FILTERS, "exit", "value")
PAGE_ROWS = 25
MANY_POINTS = 1000
"""More are drawn by WebGL, without intervals, and named by their ids."""

RUN_STAGE = "(run)"
"""The stage of figures of the run as a whole, in lists and addresses."""

NUMBERS = ("exit", "value")
SECONDS = len("2026-01-01T00:00:00")
TEXT = {"yref": "paper", "y": 1, "yanchor": "top", "xanchor": "left", "showarrow": False}

MARKED = f"Dashed line: a change, by the rule of the history ({RULE}). Click a point to open its run."


def layout(query: Query, known: KnownRuns) -> list[Component]:
    """The page of an address, which says what is filtered, drawn, sorted and chosen."""
    rows = known.rows()
    problems = [sentence(text) for text in known.problems()]
    if not rows:
        return [*problems, sentence(NO_HISTORY)]
    found, stages, stage, metric = _asked(rows, query, known)
    points = _points(found, stage, metric, known)
    filters = [
        picker(name, f"choose-{name}", _values(rows, name), query.get(name, []), many=True, empty="all")
        for name in FILTERS
    ]
    figures = [
        picker("stage", "choose-stage", list(stages), stage),
        picker("figure", "choose-metric", [_labelled(one) for one in stages.get(stage, [])], metric),
    ]
    return [
        *problems,
        html.Div([*figures, *filters], className="pickers"),
        dcc.Store(id="shown", data=[*(query.get(name, []) for name in FILTERS), stage, metric]),
        dcc.Graph(id="trend", figure=_trend(points, metric), config=GRAPH, className="chart"),
        sentence(MARKED),
        *_table(found, points, metric, query),
    ]


def register(app: Dash) -> None:
    """What is chosen changes the address; a click on a point opens its run."""
    inputs = [Input(f"choose-{name}", "value") for name in CHOICES]
    app.callback(Output("url", "search"), inputs, State("shown", "data"), State("url", "search"))(_choose)
    app.callback(Output("url", "href"), Input("trend", "clickData"))(_open)


def csv_of(query: Query, known: KnownRuns) -> str:
    """All runs of an address, with the figure that it draws."""
    found, _, stage, metric = _asked(known.rows(), query, known)
    values = {row["id"]: row for row in _points(found, stage, metric, known)}
    written = io.StringIO()
    columns = ["id", *FACTS, "setup", "exit", "stage", "metric", "value", "low", "high", "count"]
    lines = csv.DictWriter(written, columns, extrasaction="ignore")
    lines.writeheader()
    lines.writerows({**row, **values.get(row["id"], {"stage": stage, "metric": metric})} for row in found)
    return written.getvalue()


def _choose(*values_shown_search: Any) -> Any:
    *values, shown, search = values_shown_search
    if [value or [] for value in values[: len(FILTERS)]] + list(values[len(FILTERS) :]) == shown:
        return no_update
    lists = [value if isinstance(value, list) else [value] if value else [] for value in values]
    return address("", {**query_of(search), **dict(zip(CHOICES, lists, strict=True)), "page": []})


def _open(clicked: Mapping[str, Any] | None) -> Any:
    return address("/run", {"run": [clicked["points"][0]["customdata"]]}) if clicked else no_update


def _asked(rows: Sequence[Row], query: Query, known: KnownRuns) -> tuple[list[Row], dict[str, list[str]], str, str]:
    """The runs of an address, the stages that they have with their metrics, and the stage and metric that are drawn."""
    found = [row for row in rows if all(name not in query or str(row[name]) in query[name] for name in FILTERS)]
    stages = {stage or RUN_STAGE: metrics for stage, metrics in known.measured(found).items()}
    stage = first(query, "stage", RUN_STAGE)
    stage = stage if stage in stages else next(iter(stages), RUN_STAGE)
    metrics = stages.get(stage, ["throughput"])
    metric = first(query, "metric")
    return found, stages, stage, metric if metric in metrics else metrics[0]


def _points(found: Sequence[Row], stage: str, metric: str, known: KnownRuns) -> list[Row]:
    """Those of the runs that have the metric, the oldest first."""
    ids = {row["id"] for row in found}
    return [row for row in known.values("" if stage == RUN_STAGE else stage, metric) if row["id"] in ids]


def _labelled(metric: str) -> dict[str, str]:
    """A metric in a list."""
    label = METRICS[metric].label if metric in METRICS else metric
    return {"label": metric if label == metric else f"{metric}: {label}", "value": metric}


def _values(rows: Sequence[Row], name: str) -> list[dict[str, str]]:
    """The values of a fact, for a list."""
    found = {str(row[name]) for row in rows if row[name] is not None}
    return [{"label": cell({name: value}, name), "value": value} for value in sorted(found)]


# ---- the chart ----


def _trend(points: Sequence[Row], metric: str) -> dict[str, Any]:
    """Plotly's figure: a line for each kind of run, and a mark at each change of it."""
    of = METRICS.get(metric, ACCURACY_METRIC)
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in filter(is_usable, points):
        kinds.setdefault(tuple(row[name] for name in ALIKE), []).append(row)
    colors = cycle(LINE_PALETTE)
    lines, shapes, texts = [], [], []
    for name, rows, color in zip(_names(list(kinds)), kinds.values(), colors, strict=False):
        lines.append(_line(name, rows, color, is_many=len(points) > MANY_POINTS))
        for one in changes_of([row["value"] for row in rows]):
            at, line = rows[one.place]["created"][:SECONDS], {"dash": "dash", "width": 1, "color": color}
            text = change(one.after / one.before if one.before else None)
            shapes.append({"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line})
            texts.append({**TEXT, "x": at, "text": text, "font": {"color": color}})
    if failed := [row for row in points if not is_usable(row)]:
        line = _line("ended with an error", failed, GREY, is_many=len(points) > MANY_POINTS)
        lines.append({**line, "mode": "markers", "marker": {"symbol": "x", "color": GREY}})
    title = f"{of.label} ({of.unit})" if of.unit else of.label
    return {"data": lines, "layout": chart_layout(title, shapes=shapes, annotations=texts)}


def _line(name: str, rows: Sequence[Row], color: str, *, is_many: bool) -> dict[str, Any]:
    low, high = ([_distance(row, end) for row in rows] for end in ("low", "high"))
    interval = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "thickness": 1, "width": 3}
    return {
        "type": "scattergl" if is_many else "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [row["created"][:SECONDS] for row in rows],
        "y": [row["value"] for row in rows],
        "customdata": [row["id"] for row in rows],
        "hovertemplate": f"%{{y:.5g}}<br>%{{{'customdata' if is_many else 'text'}}}<extra></extra>",
        "line": {"color": color, "width": 1.4},
        **({} if is_many else {"error_y": interval, "text": [label_of(row) for row in rows]}),
    }


def _distance(row: Row, end: str) -> float | None:
    """From the value to an end of its interval; None: it has none."""
    return None if row[end] is None else abs(float(row[end]) - float(row["value"]))


def _names(kinds: Sequence[tuple[Any, ...]]) -> list[str]:
    """What distinguishes the kinds of runs, in words; always the script."""
    differ = [place for place, of_place in enumerate(zip(*kinds, strict=True)) if len(set(of_place)) > 1]
    shown = [place for place, name in enumerate(ALIKE) if place in differ or name == "script"]
    return [
        " ".join(cell({ALIKE[place]: kind[place]}, ALIKE[place]) for place in shown if kind[place]) for kind in kinds
    ]


# ---- the table ----


def _table(found: Sequence[Row], points: Sequence[Row], metric: str, query: Query) -> Iterator[Component]:
    """The runs, a page of them, in the order of a column; a mark in front of each run chooses it."""
    values = {row["id"]: row["value"] for row in points}
    rows = [{**row, "value": values.get(row["id"])} for row in found]
    order, runs = first(query, "sort", "-created"), query.get("run", [])
    column, is_down = order.removeprefix("-"), order.startswith("-")
    if column in COLUMNS:
        rows.sort(key=lambda row: (row[column] is not None, _sortable(row, column)), reverse=is_down)
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(max(int(text) if (text := first(query, "page", "1")).isdecimal() else 1, 1), pages)

    def link(text: str, **changed: Sequence[str]) -> Component:
        return dcc.Link(text, href=address("/", {**query, **changed}))

    headings = ["", *(_heading(name, metric if name == "value" else name, order, link) for name in COLUMNS)]
    lines = []
    for row in rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]:
        is_chosen = row["id"] in runs
        others = [one for one in runs if one != row["id"]]
        mark = link("☑" if is_chosen else "☐", run=others if is_chosen else [*runs, row["id"]])
        opened = dcc.Link(cell(row, "created"), href=address("/run", {"run": [row["id"]]}))
        lines.append([mark, opened, *(cell(row, name) for name in COLUMNS[1:])])
    steps = [link(text, page=[str(to)]) for text, to in (("← ", page - 1), (" →", page + 1)) if 1 <= to <= pages]
    yield html.P(
        [
            f"{len(rows)} runs, page {page} of {pages} ",
            *steps,
            " · ",
            html.A("CSV", href=address("/history.csv", query), download="history.csv"),
            " · ",
            dcc.Link(f"Compare the {len(runs)} chosen", href=address("/compare", {"run": runs}))
            if len(runs) > 1
            else "Choose two or more to compare them",
        ]
    )
    yield table("runs", headings, lines, len(NUMBERS))


def _sortable(row: Row, column: str) -> float | str:
    return row[column] or 0 if column in NUMBERS else str(row[column])


def _heading(name: str, text: str, order: str, link: Callable[..., Component]) -> Component:
    """A link that sorts by the column, downwards at first."""
    arrow = {f"-{name}": " ↓", name: " ↑"}.get(order, "")
    return link(f"{text}{arrow}", sort=[name if order == f"-{name}" else f"-{name}"], page=[])
