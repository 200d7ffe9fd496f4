"""Tables of the run store: the list of runs, one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from perfharness.render.terminal.console import Column, print_table, say
from perfharness.render.terminal.results import NOT_MEASURED
from perfharness.runs.store.folders import folder_state
from perfharness.runs.store.records import THROUGHPUT, WHOLE_RUN, Figure, StoredRun

SHORT_COMMIT = 9
FOLDER_TEXTS = {
    "there": "",
    "replaced": " (which holds another run now)",
    "gone": " (which is not on this machine, or gone)",
}


def when_text(run: StoredRun) -> str:
    """When it began, to the second, UTC."""
    return datetime.fromtimestamp(run.created_unix_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def commit_text(run: StoredRun) -> str:
    """The commit, with a `+` where files differed from it."""
    return "" if run.git_commit is None else run.git_commit[:SHORT_COMMIT] + ("+" if run.git_dirty else "")


def number_text(value: float | None) -> str:
    """A number for a table."""
    return NOT_MEASURED if value is None else f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def print_runs(console: Console, runs: Sequence[StoredRun]) -> None:
    """Print one row a run."""
    columns = [
        Column("run", is_text=True, is_whole=True),
        Column("kind", is_text=True, is_whole=True),
        Column("began (UTC)", is_text=True, is_whole=True, drop=2),
        Column("script", is_text=True),
        Column("commit", is_text=True, drop=3),
        Column("ok", drop=5),
        Column("items/s", drop=4),
        Column("exit"),
        Column("folder", is_text=True, is_whole=True, drop=6),
        Column("tags", is_text=True, drop=1),
    ]
    rows = [
        [
            run.run_id,
            run.kind,
            when_text(run),
            Path(run.script).name or run.script,
            commit_text(run),
            NOT_MEASURED if run.num_processes is None else f"{run.processes_ok}/{run.num_processes}",
            number_text(mean_of(run.figure(WHOLE_RUN, THROUGHPUT))),
            str(run.exit_code),
            folder_state(run),
            ", ".join(run.tags),
        ]
        for run in runs
    ]
    print_table(console, columns, rows)


def print_baselines(console: Console, found: Mapping[str, Sequence[StoredRun]]) -> None:
    """Print one row for each run of each baseline."""
    columns = [
        Column("baseline", is_text=True, is_whole=True),
        Column("run", is_text=True, is_whole=True),
        Column("kind", is_text=True, is_whole=True),
        Column("began (UTC)", is_text=True, is_whole=True, drop=2),
        Column("script", is_text=True),
        Column("commit", is_text=True, drop=1),
    ]
    rows = [
        [name, run.run_id, run.kind, when_text(run), Path(run.script).name or run.script, commit_text(run)]
        for name, runs in found.items()
        for run in runs
    ]
    print_table(console, columns, rows)


def mean_of(figure: Figure | None) -> float | None:
    """Its mean; None: there is none."""
    return None if figure is None else figure.mean


def print_run(console: Console, run: StoredRun, launches: Sequence[StoredRun]) -> None:
    """Print what the store holds of a run: facts, launches, figures."""
    say(console, f"{run.kind} {run.run_id}")
    facts = {
        "script": " ".join([run.script, *run.script_arguments]),
        "began": f"{when_text(run)} UTC",
        "command": " ".join(run.command),
        "folder": run.folder + FOLDER_TEXTS[folder_state(run)],
        "part of": run.series_id or "",
        "commit": commit_text(run),
        "ended": f"exit {run.exit_code}; {run.errors} errors, {run.warnings} warnings, {run.notes} notes",
        "machine": ", ".join(str(one) for one in _machine(run)),
        "setup": run.setup,
        "tags": ", ".join(run.tags),
    }
    for name, text in facts.items():
        if text:
            say(console, f"  {name:<8} {text}")
    if run.kind != "launch" and launches:
        print_runs(console, launches)
    if run.figures:
        _print_figures(console, run.figures)


def _machine(run: StoredRun) -> list[object]:
    environment = run.environment
    gpus = run.setup_facts.get("gpus") or []
    versions = [f"{name} {environment[name]}" for name in ("driver", "python", "perfharness") if environment.get(name)]
    return [one for one in (environment.get("hostname"), environment.get("cpu"), *gpus, *versions) if one]


def _print_figures(console: Console, figures: Sequence[Figure]) -> None:
    columns = [
        Column("of", is_text=True),
        Column("metric", is_text=True, is_whole=True),
        Column("unit", is_text=True, is_whole=True, drop=3),
        Column("count", drop=2),
        Column("mean"),
        Column("p50", drop=1),
        Column("p95", drop=1),
    ]
    rows = [
        [
            figure.path or "whole run",
            figure.metric,
            figure.unit,
            "" if figure.count is None else str(figure.count),
            number_text(figure.mean),
            "" if figure.p50 is None else number_text(figure.p50),
            "" if figure.p95 is None else number_text(figure.p95),
        ]
        for figure in figures
    ]
    print_table(console, columns, rows)
    for figure in figures:
        if figure.reason is not None and figure.mean is None and figure.p50 is None:
            say(console, f"{figure.path or 'whole run'}, {figure.metric}: {figure.reason}")
