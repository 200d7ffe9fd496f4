"""History page: a figure over time with its changes, and a table of runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import cycle
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, State, dcc, html, no_update

from perfharness.dashboard.known import NO_HISTORY, KnownRuns
from perfharness.dashboard.parts import (
    Component,
    Query,
    address,
    cell,
    chart,
    first,
    picker,
    query_of,
    register_chart,
    sentence,
    table,
    zoom,
)
from perfharness.render.charts.drawing import DASHED, GREY, LINE_PALETTE, NUMBERS, Picture, Specification
from perfharness.render.charts.over_time import WIDTH
from perfharness.render.numbers import change
from perfharness.runs.figures import ACCURACY_METRIC, METRICS
from perfharness.runs.history import ALIKE, FACTS, RULE, Row, changes_of, is_usable

FILTERS = ("script", "model", "backend", "precision", "machine", "commit")
CHOICES = (*FILTERS, "stage", "metric")
COLUMNS = ("created", "kind", *FILTERS, "exit", "value")
PAGE_ROWS = 25
HEIGHT = 300
LINE_PX = 12
FAILED = "ended with an error"
CLOCK = {"hours": "%H:%M", "minutes": "%H:%M"}
"""Vega's formats by unit of time, without AM and PM."""

RUN_STAGE = "(run)"
"""Stage name for figures of the whole run, in lists and addresses."""

NUMERIC = ("exit", "value")

HAS_INTERVAL = "datum.low !== null && datum.high !== null"
FLATTENED = ["ms", "value", "low", "high", "commit", "id"]
"""Columns of a line, sent as arrays: rows would take four times as long."""

CALCULATED = {
    "run": "utcFormat(datum.ms, '%Y-%m-%d %H:%M:%S') + ' ' + datum.commit",
    "interval": f"{HAS_INTERVAL} ? format(datum.low, '.5~g') + ' to ' + format(datum.high, '.5~g') : 'none'",
    "page": "'/run?run=' + datum.id",
}
TOOLTIP = [
    {"field": "run"},
    {"field": "line", "title": "kind"},
    {"field": "value", "type": "quantitative", "format": ".5~g"},
    {"field": "interval", "title": "95 % interval"},
]

MARKED = f"Dashed line: a change, by the rule of the history ({RULE}). Click a point to open its run."


def layout(query: Query, known: KnownRuns) -> list[Component]:
    """Make the page for an address with filters, figure, order and chosen runs."""
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
        *chart("trend", _trend(points, metric)),
        sentence(MARKED),
        *_table(found, points, metric, query),
    ]


def register(app: Dash) -> None:
    """Write what is chosen to the address."""
    inputs = [Input(f"choose-{name}", "value") for name in CHOICES]
    app.callback(Output("url", "search"), inputs, State("shown", "data"), State("url", "search"))(_choose)
    register_chart(app, "trend")


def csv_of(query: Query, known: KnownRuns) -> str:
    """CSV of all runs of an address with its figure."""
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


def _asked(rows: Sequence[Row], query: Query, known: KnownRuns) -> tuple[list[Row], dict[str, list[str]], str, str]:
    """Return runs, metrics by stage, and the drawn stage and metric of an address."""
    found = [row for row in rows if all(name not in query or str(row[name]) in query[name] for name in FILTERS)]
    stages = {stage or RUN_STAGE: metrics for stage, metrics in known.measured(found).items()}
    stage = first(query, "stage", RUN_STAGE)
    stage = stage if stage in stages else next(iter(stages), RUN_STAGE)
    metrics = stages.get(stage, ["throughput"])
    metric = first(query, "metric")
    return found, stages, stage, metric if metric in metrics else metrics[0]


def _points(found: Sequence[Row], stage: str, metric: str, known: KnownRuns) -> list[Row]:
    """Runs with the metric, oldest first."""
    values = known.values("" if stage == RUN_STAGE else stage, metric)
    return [{**row, **values[row["id"]]} for row in reversed(found) if row["id"] in values]


def _labelled(metric: str) -> dict[str, str]:
    """Option of a metric."""
    label = METRICS[metric].label if metric in METRICS else metric
    return {"label": metric if label == metric else f"{metric}: {label}", "value": metric}


def _values(rows: Sequence[Row], name: str) -> list[dict[str, str]]:
    """Options of a filter."""
    found = {str(row[name]) for row in rows if row[name] is not None}
    return [{"label": cell({name: value}, name), "value": value} for value in sorted(found)]


# ---- the chart ----


def _trend(points: Sequence[Row], metric: str) -> Picture:
    """Draw a line per kind of run, crosses for failed runs, and a dashed line at each change."""
    of = METRICS.get(metric, ACCURACY_METRIC)
    title = f"{of.label} ({of.unit})" if of.unit else of.label
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in filter(is_usable, points):
        kinds.setdefault(tuple(row[name] for name in ALIKE), []).append(row)
    lines = dict(zip(_names(list(kinds)), kinds.values(), strict=True))
    changes = [one for place, (name, rows) in enumerate(lines.items()) for one in _changes(name, rows, place)]
    colors = dict(zip(lines, cycle(LINE_PALETTE), strict=False))
    if failed := [row for row in points if not is_usable(row)]:
        lines[FAILED], colors[FAILED] = failed, GREY
    domain = list(colors)
    line = {"field": "line", "type": "nominal"}
    shape = {**line, "scale": {"domain": domain, "range": [*["circle"] * len(kinds), "cross"][: len(domain)]}}
    value: Specification = {"field": "value", "type": "quantitative", "title": title}
    value |= {"scale": {"zero": False}, "axis": {"format": NUMBERS}}
    chart = {
        "width": WIDTH,
        "height": HEIGHT,
        "encoding": {
            "x": {
                "field": "ms",
                "type": "temporal",
                "title": None,
                "axis": {"format": CLOCK},
                "scale": {"type": "utc", "padding": 10},
            },
            "color": {**line, "scale": {"domain": domain, "range": list(colors.values())}},
        },
        "layer": [
            {
                "data": {"name": "runs"},
                "transform": [
                    {"flatten": FLATTENED},
                    *({"calculate": text, "as": name} for name, text in CALCULATED.items()),
                ],
                "encoding": {"y": value},
                "layer": [
                    {"mark": "line", "transform": [{"filter": {"field": "line", "oneOf": domain[: len(kinds)]}}]},
                    {
                        "mark": "rule",
                        "transform": [{"filter": HAS_INTERVAL}],
                        "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
                    },
                    {
                        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 36},
                        "params": [zoom()],
                        "encoding": {"shape": shape, "href": {"field": "page"}, "tooltip": TOOLTIP},
                    },
                ],
            },
            {"data": {"name": "changes"}, "mark": {"type": "rule", "strokeDash": DASHED}},
            {
                "data": {"name": "changes"},
                "mark": {"type": "text", "align": "left", "baseline": "top", "dx": 3, "dy": {"expr": "datum.dy"}},
                "encoding": {"y": {"value": 0}, "text": {"field": "text"}},
            },
        ],
    }
    rows = {"runs": [_columns(name, of_line) for name, of_line in lines.items()], "changes": changes}
    return Picture("history", chart, rows, f"{title} of {len(points)} runs over time")


def _columns(name: str, rows: Sequence[Row]) -> Row:
    """Columns of a line."""
    return {
        "line": name,
        "ms": [_ms(row) for row in rows],
        "commit": [cell(row, "commit") for row in rows],
        "id": [quote(row["id"]) for row in rows],
        **{end: [row[end] for row in rows] for end in ("value", "low", "high")},
    }


def _changes(name: str, rows: Sequence[Row], place: int) -> Iterator[Row]:
    for one in changes_of([row["value"] for row in rows]):
        text = change(one.after / one.before if one.before else None)
        yield {"line": name, "ms": _ms(rows[one.place]), "text": text, "dy": LINE_PX * place}


def _ms(row: Row) -> float:
    return datetime.fromisoformat(row["created"]).timestamp() * 1000


def _names(kinds: Sequence[tuple[Any, ...]]) -> list[str]:
    """Name each kind of run by the script and the facts that differ; by full values if names clash."""
    differ = [place for place, of_place in enumerate(zip(*kinds, strict=True)) if len(set(of_place)) > 1]
    shown = [place for place, name in enumerate(ALIKE) if place in differ or name == "script"]
    paths = [" ".join(str(kind[place]) for place in shown if kind[place]) for kind in kinds]
    names = [
        " ".join(cell({ALIKE[place]: kind[place]}, ALIKE[place]) for place in shown if kind[place]) for kind in kinds
    ]
    return names if len(set(names)) == len(names) else paths


# ---- the table ----


def _table(found: Sequence[Row], points: Sequence[Row], metric: str, query: Query) -> Iterator[Component]:
    """Make a sorted page of runs; a mark before each run chooses it."""
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
    yield table("runs", headings, lines, len(NUMERIC))


def _sortable(row: Row, column: str) -> float | str:
    return row[column] or 0 if column in NUMERIC else str(row[column])


def _heading(name: str, text: str, order: str, link: Callable[..., Component]) -> Component:
    """Link that sorts by the column, descending first."""
    arrow = {f"-{name}": " ↓", name: " ↑"}.get(order, "")
    return link(f"{text}{arrow}", sort=[name if order == f"-{name}" else f"-{name}"], page=[])
