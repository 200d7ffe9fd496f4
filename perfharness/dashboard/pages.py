"""Run and Compare pages: a report or comparison in a frame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from perfharness.dashboard.known import KnownRuns, stamp_of
from perfharness.dashboard.parts import (
    Component,
    Query,
    address,
    cell,
    first,
    frame,
    label_of,
    picker,
    query_of,
    run_options,
    sentence,
)
from perfharness.errors import HistoryError, UsageError
from perfharness.render.blocks import Block, Column, Document, Paragraph, Table
from perfharness.render.html import html_page
from perfharness.render.report.files import gather_all
from perfharness.render.report.sections import document_of
from perfharness.render.views.compare import compare_view
from perfharness.runs.comparison.compare import compare_sides
from perfharness.runs.comparison.match import CompareOptions
from perfharness.runs.comparison.sides import SideInput
from perfharness.runs.files.run_folder import AS_LAUNCHED
from perfharness.runs.history import FACTS, Row, launch_of

BY = {"version": "one side per version", "run": "one side per run"}
VERSION = ("script", "model", "backend", "precision", "machine", "commit", "setup")
"""Facts that launches of one version share."""

KEPT = 16
"""Reports kept in memory, about 2 MB each."""

_one_report = Lock()
"""Held while a report is made: a request for the same one waits for it."""


# ---- Run ----


def run_layout(query: Query, known: KnownRuns) -> list[Component]:
    """List of runs, and the report of the chosen one."""
    rows = known.rows()
    run = first(query, "run")
    folders = [{"label": name, "value": name} for name in known.folders]
    chosen = picker("run", "run", [*folders, *run_options(rows, [run])], run, empty="choose a run")
    return [chosen, frame(address("/report", {"run": [run]}), "report") if run else sentence("Choose a run.")]


def report_of(query: Query, known: KnownRuns) -> str:
    """Report of a run as `perfharness report` writes it, or the history's numbers if its folder is gone."""
    run = first(query, "run")
    if (folder := known.folders.get(run)) is not None:
        return _report(folder, stamp_of(folder))
    entry = known.entry(run)
    try:
        folder = launch_of(entry.run).folder
        return _report(folder, stamp_of(folder))
    except HistoryError as error:
        facts = [[name, cell(entry.run, name)] for name in FACTS]
        figures = [
            [one["stage"], one["metric"], *(one[end] for end in ("value", "low", "high"))] for one in entry.figures
        ]
        numbers = [Column(name, "number") for name in ("value", "low", "high")]
        blocks: list[Block] = [
            Paragraph(f"{error}. The history has these numbers.", "warning"),
            Table("run", [Column("fact"), Column("value")], facts),
            Table("figures", [Column("stage"), Column("figure"), *numbers], figures),
        ]
        return html_page(Document(f"Run {run}", "", blocks))


def _report(folder: Path, stamp: tuple[int, ...]) -> str:
    with _one_report:
        return _made_report(folder, stamp)


@lru_cache(maxsize=KEPT)
def _made_report(folder: Path, stamp: tuple[int, ...]) -> str:
    del stamp
    return html_page(document_of(gather_all([folder], AS_LAUNCHED, None)))


# ---- Compare ----


def compare_layout(query: Query, known: KnownRuns) -> list[Component]:
    """Lists of runs and groupings, and the comparison."""
    runs, by = query.get("run", []), first(query, "by", "version")
    rows = known.rows()
    chosen = [
        picker("runs", "runs", run_options(rows, runs), runs, many=True, empty="choose two or more runs"),
        picker("sides", "by", [{"label": text, "value": name} for name, text in BY.items()], by),
    ]
    shown = (
        frame(address("/comparison", query), "comparison") if len(runs) > 1 else sentence("Choose two or more runs.")
    )
    return [html.Div(chosen, className="pickers"), shown]


def comparison_of(query: Query, known: KnownRuns) -> str:
    """Comparison of the chosen runs; the side with the oldest run is the base.

    Runs of a single version are compared one by one.
    """
    rows = sorted((known.entry(run).run for run in query.get("run", [])), key=lambda row: str(row["created"]))
    if len(rows) < 2:
        raise UsageError("Choose two or more runs.")
    sides = _sides(rows, first(query, "by", "version"))
    sides = sides if len(sides) > 1 else _sides(rows, "run")
    base, *others = [SideInput(name, [launch_of(row) for row in of_side]) for name, of_side in sides.items()]
    comparison = compare_sides(base, others, CompareOptions())
    return html_page(Document("Comparison", f"Base: {base.name}", compare_view(comparison, fold=True, charts=True)))


def _sides(rows: Sequence[Row], by: str) -> dict[str, list[Row]]:
    """Runs of each side, named by what differs."""
    differ = [name for name in VERSION if len({row[name] for row in rows}) > 1]
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = " ".join(cell(row, name) for name in differ if row[name]) if by == "version" else label_of(row)
        found.setdefault(name, []).append(row)
    return found


def register(app: Dash) -> None:
    """Write what is chosen to the address."""
    to_url, shown = Output("url", "search", allow_duplicate=True), State("url", "search")
    app.callback(to_url, Input("run", "value"), shown, prevent_initial_call=True)(_choose_run)
    of_sides = [Input("runs", "value"), Input("by", "value")]
    app.callback(to_url, of_sides, shown, prevent_initial_call=True)(_choose_runs)


def _choose_run(run: str | None, search: str) -> Any:
    after = address("", {"run": [run] if run else []})
    return no_update if after == search else after


def _choose_runs(runs: Sequence[str] | None, by: str, search: str) -> Any:
    before, after = query_of(search), {"run": list(runs or []), "by": [by]}
    return no_update if after == {"run": [], "by": ["version"], **before} else address("", after)
