"""Tables of the run store: the list of runs, one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from perfharness.model.text import NOT_MEASURED
from perfharness.render.terminal.console import Column, print_table, say
from perfharness.runs.store.folders import folder_state
from perfharness.runs.store.records import THROUGHPUT, WHOLE_RUN, Figure, StoredRun
from perfharness.runs.store.trend import TrendPoint

SHORT_COMMIT = 9
ERROR_RATE = "error_rate"
LOAD_TEXTS = {
    "stress": {
        "achieved_rate": "{:.4g}/s", "load_p50": "p50 {:.4g} ms",
        "load_p99": "p99 {:.4g} ms", ERROR_RATE: "{:.2%} errors",
    },
    "mlperf": {"loadgen_rate": "{:.4g} samples/s", "loadgen_latency": "{:.4g} ms"},
}  # fmt: skip
"""By kind and metric, how the list shows it."""

FOLDER_TEXTS = {
    "there": "",
    "replaced": " (which holds another run now)",
    "gone": " (which is not on this machine, or gone)",
}


def when_text(run: StoredRun) -> str:
    """When it began, to the second, UTC."""
    return datetime.fromtimestamp(run.created_unix_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def commit_text(run: StoredRun | TrendPoint) -> str:
    """The commit, with a `+` where files differed from it."""
    return "" if run.git_commit is None else run.git_commit[:SHORT_COMMIT] + ("+" if run.git_dirty else "")


def script_text(run: StoredRun) -> str:
    """What was measured, without its folder."""
    return run.script if "://" in run.script else Path(run.script).name or run.script


def load_text(run: StoredRun) -> str:
    """What a load test came to: its verdict where that is not `ok`, and what it is judged by."""
    if run.kind not in LOAD_TEXTS:
        return ""
    verdict = (run.verdict or "").partition(":")[0]
    parts = [str(run.setup_facts["scenario"])] if run.kind == "mlperf" and "scenario" in run.setup_facts else []
    parts += [verdict] if verdict not in ("", "ok") else []
    for metric, form in LOAD_TEXTS[run.kind].items():
        value = mean_of(run.figure(WHOLE_RUN, metric))
        if value is not None and (value or metric != ERROR_RATE):
            parts.append(form.format(value))
    return ", ".join(parts)


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
        *([Column("load", is_text=True)] if any(run.kind in LOAD_TEXTS for run in runs) else []),
        Column("exit"),
        Column("folder", is_text=True, is_whole=True, drop=6),
        Column("tags", is_text=True, drop=1),
    ]
    rows = [
        [
            run.run_id,
            run.kind,
            when_text(run),
            script_text(run),
            commit_text(run),
            NOT_MEASURED if run.num_processes is None else f"{run.processes_ok}/{run.num_processes}",
            number_text(mean_of(run.figure(WHOLE_RUN, THROUGHPUT))),
            *([load_text(run)] if any(one.kind in LOAD_TEXTS for one in runs) else []),
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
        [name, run.run_id, run.kind, when_text(run), script_text(run), commit_text(run)]
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
        "load": str(run.setup_facts.get("load", "")),
        "verdict": run.verdict or "",
        "setup": run.setup,
        "tags": ", ".join(run.tags),
    }
    for name, text in facts.items():
        if text:
            say(console, f"  {name:<8} {text}")
    if launches:
        print_runs(console, launches)
    if run.figures:
        _print_figures(console, run.figures)


def _machine(run: StoredRun) -> list[object]:
    environment = run.environment
    gpus = run.setup_facts.get("gpus") or []
    versions = [f"{name} {environment[name]}" for name in ("driver", "python", "perfharness") if environment.get(name)]
    return [one for one in (environment.get("hostname"), environment.get("cpu"), *gpus, *versions) if one]


def _print_figures(console: Console, figures: Sequence[Figure]) -> None:
    has_intervals = any(figure.low is not None for figure in figures)
    columns = [
        Column("of", is_text=True),
        Column("metric", is_text=True, is_whole=True),
        Column("unit", is_text=True, is_whole=True, drop=3),
        Column("count", drop=2),
        Column("mean"),
        Column("p50", drop=1),
        Column("p95", drop=1),
        *([Column("95 % interval", drop=1)] if has_intervals else []),
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
            *([_interval_text(figure)] if has_intervals else []),
        ]
        for figure in figures
    ]
    print_table(console, columns, rows)
    for figure in figures:
        if figure.reason is not None and figure.p50 is None:
            say(console, f"{figure.path or 'whole run'}, {figure.metric}: {figure.reason}")


def _interval_text(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{number_text(figure.low)} to {number_text(figure.high)}"
