"""`perfharness runs`: what is in the run store."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfharness.cli.support.help import FullSummaries, GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_OK
from perfharness.cli.support.output import Format, FormatOption, Output
from perfharness.errors import UsageError
from perfharness.model.text import SafeOnTerminal, no_formula

if TYPE_CHECKING:
    from perfharness.runs.store.filters import RunFilter
    from perfharness.runs.store.records import StoredRun
    from perfharness.runs.store.store import RunStore
    from perfharness.runs.store.trend import Order

WHICH = "Which runs"


class TrendOrder(str, Enum):
    """Words of --order."""

    COMMIT = "commit"
    START = "start"


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH_OR_URL",
        help="The run store: a path (SQLite), or a postgresql:// URL."
        " [default: PERFHARNESS_STORE, or $XDG_DATA_HOME/perfharness/runs.sqlite]",
        show_default=False,
    ),
]
ScriptOption = Annotated[
    str | None,
    typer.Option(
        "--script", metavar="SCRIPT", help="Of this script: as launched, its path or its name.", rich_help_panel=WHICH
    ),
]
TagOption = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="With this tag.", rich_help_panel=WHICH)]
CommitOption = Annotated[
    str | None,
    typer.Option("--commit", metavar="ID", help="Of this git commit, or its beginning.", rich_help_panel=WHICH),
]
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="launch, stress, mlperf, repeat, sweep, cold-start, bench, bench-sweep or trtexec.",
        rich_help_panel=WHICH,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="DATE",
        help="Begun then or later, UTC: 2026-01-31 or 2026-01-31T12:00.",
        rich_help_panel=WHICH,
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="DATE", help="Begun before the end of that day, or before that time.", rich_help_panel=WHICH
    ),
]
EachOption = Annotated[
    bool, typer.Option("--each", help="Each launch of repeats, sweeps and cold starts too.", rich_help_panel=WHICH)
]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Its id, a part of that, its folder, or `latest`.", show_default=False),
]
RunArguments = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids, parts of ids, folders, or `latest`.", show_default=False),
]


class ExportFormat(str, Enum):
    """Words of --format of the export."""

    JSON = "json"
    CSV = "csv"
    MD = "md"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb = typer.Typer(
        cls=FullSummaries, help="What is in the run store: list, show, tag, delete.", context_settings=CONTEXT
    )
    verbs: dict[str, Callable[..., None]] = {
        "list": list_runs, "show": show, "tag": tag, "add": add, "delete": delete, "export": export, "trend": trend
    }  # fmt: skip
    for name, function in verbs.items():
        verb.command(name, cls=GroupedCommand, context_settings=CONTEXT)(function)
    app.add_typer(verb, name="runs")


def list_runs(
    *,
    script: ScriptOption = None,
    tag: TagOption = None,
    commit: CommitOption = None,
    kind: KindOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    each: EachOption = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="The newest so many; 0: all.", rich_help_panel=WHICH)
    ] = 20,
    output_format: FormatOption = Format.TEXT,
    store: StoreOption = None,
) -> None:
    """List the runs in the store, the newest first.

    Exit codes: 0 listed, or there are none; 1 the store cannot be read; 2 usage.
    """
    from perfharness.render.terminal.stored_runs import print_runs

    which = run_filter(script, tag, commit, kind, since, until, each=each, limit=limit + 1 if limit else None)
    output = Output.of(output_format)
    opened = open_existing(store, output)
    found = [] if opened is None else opened.runs(which, "whole")
    shown = found[:limit] if limit else found
    if output.is_json:
        output.json({"runs": [as_object(run) for run in shown]})
    elif shown:
        print_runs(output.results, shown)
    elif opened is not None:
        output.message(f"no such run in {opened.location}")
    if len(found) > len(shown):
        output.message(f"these are the newest {limit}; --limit 0 lists all")


def show(run: RunArgument, *, output_format: FormatOption = Format.TEXT, store: StoreOption = None) -> None:
    """Print what the store holds of a run: how it was made, its launches, its numbers.

    Exit codes: 0 printed; 1 there is no such run, or the store cannot be read.
    """
    from perfharness.render.terminal.stored_runs import print_run
    from perfharness.runs.store.records import SERIES
    from perfharness.runs.store.register import open_store

    opened, output = open_store(store), Output.of(output_format)
    found = opened.find(run)
    launches = opened.launches_of(found) if found.kind in SERIES else []
    if output.is_json:
        output.json({**as_object(found), "launches": [as_object(one) for one in launches]})
    else:
        print_run(output.results, found, launches)


def tag(
    run: RunArguments,
    *,
    add: Annotated[list[str], typer.Option("--add", metavar="TAG", help="Add it; may be repeated.")] = [],  # noqa: B006
    remove: Annotated[list[str], typer.Option("--remove", metavar="TAG", help="Remove it; may be repeated.")] = [],  # noqa: B006
    store: StoreOption = None,
) -> None:
    """Add tags to runs, or remove them.

    Exit codes: 0 done; 1 there is no such run, or the store cannot be written; 2 usage.
    """
    from perfharness.runs.store.register import open_store

    if not add and not remove:
        raise UsageError("name a tag: --add TAG, or --remove TAG")
    output = Output.of()
    for one in open_store(store).tag(run, add, remove):
        output.message(f"{one.run_id}: {', '.join(one.tags) or 'no tags'}")


def add(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Runs, series of launches, suites of bench, results of trtexec.",
            show_default=False,
        ),
    ],
    store: StoreOption = None,
) -> None:
    """Add what lies in folders: what was measured without a store, or on another machine.

    Exit codes: 0 all added; 1 one could not be.
    """
    from perfharness.bench.suite.store import SUITE, SWEEP
    from perfharness.runs.store.add import add_folder
    from perfharness.runs.store.documents import suite_documents
    from perfharness.runs.store.gather import stored_suite
    from perfharness.runs.store.register import open_store

    opened, output = open_store(store, create=True), Output.of()
    for folder in folders:
        if SUITE.is_in(folder) or SWEEP.is_in(folder):
            result = SUITE.read(folder) if SUITE.is_in(folder) else SWEEP.read(folder)
            run = stored_suite(result, folder if folder.is_dir() else folder.parent, EXIT_OK if result.complete else 1)
            opened.add(run, files=suite_documents(result) if run.kind == "bench" else None)
            added = [run]
        else:
            added = add_folder(opened, folder)
        for run in added:
            output.message(f"{folder}: {run.kind} {run.run_id}")


def delete(
    run: RunArguments,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Delete runs from the store, with the launches that they consist of. Folders stay as they are.

    Exit codes: 0 done; 1 there is no such run, or the store cannot be written.
    """
    from perfharness.runs.store.register import open_store

    opened, output = open_store(store), Output.of()
    found = [opened.find(one) for one in run] if dry_run else opened.delete(run)
    for one in found:
        output.message(f"{'would delete' if dry_run else 'deleted'}: {one.kind} {one.run_id}")


def export(
    *,
    script: ScriptOption = None,
    tag: TagOption = None,
    commit: CommitOption = None,
    kind: KindOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file; - is stdout.")] = Path("-"),
    output_format: Annotated[
        ExportFormat,
        typer.Option("--format", help="json: all there is; csv: a row for each number; md: the list of runs."),
    ] = ExportFormat.JSON,
    store: StoreOption = None,
) -> None:
    """Write runs with all their numbers; each launch of a series is a run of its own.

    Exit codes: 0 written; 1 the store cannot be read, or the file not be written.
    """
    from perfharness.files import is_stdout, write_text
    from perfharness.runs.store.register import open_store

    which = run_filter(script, tag, commit, kind, since, until, each=True)
    found = open_store(store).runs(which, "all")
    content = EXPORTS[output_format](found)
    if is_stdout(output):
        SafeOnTerminal().write(content)
    else:
        write_text(output, lambda file: print(content, end="", file=file))


def trend(
    stage: Annotated[
        str,
        typer.Argument(
            metavar="[STAGE]",
            help="Path or last name, or a case of bench; without it the run as a whole.",
            show_default=False,
        ),
    ] = "",
    *,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cpu, gpu, busy, the same _per_item, throughput, energy; of a case latency; with _p50 or _p95; of a"
            " load test latency.p99, achieved_rate, goodput, error_rate, loadgen_rate, loadgen_latency."
            " [default: cpu; of a run throughput]",
            show_default=False,
        ),
    ] = None,
    script: ScriptOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    setup: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Launches of this setup, as `runs show` prints it. [default: that of the newest]",
            show_default=False,
            rich_help_panel=WHICH,
        ),
    ] = None,
    order: Annotated[
        TrendOrder | None,
        typer.Option(
            help="Of the points: by the date of their commit, or by their start."
            " [default: commit where every date is known, else start]",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(metavar="RATE", help="How often a series without a step may be said to have one.")
    ] = 0.01,
    min_effect: Annotated[
        float, typer.Option(metavar="PART", help="Smallest step that counts, as a part of 1.")
    ] = 0.02,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it: .png, .svg, .pdf or .html.", show_default=False),
    ] = None,
    output_format: FormatOption = Format.TEXT,
    store: StoreOption = None,
) -> None:
    """Print a number over commits or time, and where it stepped to another level.

    A point is a launch or a repeat; those of one setup are compared (script, arguments, machine, GPUs, tracer,
    processes).

    Exit codes: 0 printed; 1 there are no such launches, or the store cannot be read; 2 usage.
    """
    from perfharness.render.terminal.trend import print_trend
    from perfharness.runs.store.register import open_store
    from perfharness.runs.store.trend import trend as trend_of

    if chart is not None:
        check_chart(chart)
    output = Output.of(output_format)
    which = run_filter(script, tag, None, None, since, until, each=True)
    by: Order | None = None if order is None else "commit" if order is TrendOrder.COMMIT else "start"
    found = trend_of(open_store(store), stage, metric, which, setup=setup, alpha=alpha, min_effect=min_effect, order=by)
    if output.is_json:
        output.json(found.model_dump(mode="json"))
    else:
        print_trend(output.results, found)
    if chart is not None:
        from perfharness.render.charts.trend import trend_picture

        output.message(f"drawn: {trend_picture(found).save(chart)}")


def check_chart(path: Path) -> None:
    """Whether the chart can be drawn. Raises `UsageError`, `ToolNotFoundError`."""
    from perfharness.render.charts.drawing import require_charts

    if path.suffix not in (".png", ".svg", ".pdf", ".html"):
        raise UsageError(f"--chart {path}: its name must end in .png, .svg, .pdf or .html")
    require_charts("--chart")


def as_json(runs: Sequence[StoredRun]) -> str:
    """All that is stored of the runs."""
    from perfharness.runs.files.json_files import json_bytes

    return json_bytes({"schema_version": 1, "runs": [run.model_dump(mode="json") for run in runs]}).decode()


OF_A_RUN = (
    "run_id",
    "kind",
    "series_id",
    "created",
    "script",
    "git_commit",
    "git_dirty",
    "setup",
    "exit_code",
    "verdict",
    "folder",
)
OF_A_FIGURE = ("path", "metric", "unit", "count", "mean", "p50", "p95", "low", "high", "reason")


def as_csv(runs: Sequence[StoredRun]) -> str:
    """A row for each number; empty: not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*OF_A_RUN, "tags", *OF_A_FIGURE])
    for run in runs:
        own = [*(getattr(run, name) for name in OF_A_RUN), " ".join(run.tags)]
        for figure in run.figures:
            cells = [*own, *(getattr(figure, name) for name in OF_A_FIGURE)]
            writer.writerow([no_formula(cell) if isinstance(cell, str) else cell for cell in cells])
    return text.getvalue()


def as_markdown(runs: Sequence[StoredRun]) -> str:
    """The list of runs."""
    from perfharness.render.terminal.console import Console
    from perfharness.render.terminal.stored_runs import print_runs

    text = io.StringIO()
    print_runs(Console(file=text, markdown=True), runs)
    return text.getvalue()


EXPORTS = {ExportFormat.JSON: as_json, ExportFormat.CSV: as_csv, ExportFormat.MD: as_markdown}


def run_filter(
    script: str | None,
    tag: str | None,
    commit: str | None,
    kind: str | None,
    since: str | None,
    until: str | None,
    *,
    each: bool = False,
    limit: int | None = None,
) -> RunFilter:
    """The options as a filter. Raises `UsageError`."""
    from perfharness.runs.store.filters import RunFilter
    from perfharness.runs.store.records import KINDS

    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind {kind}: must be one of {', '.join(KINDS)}")
    since_ns = None if since is None else date_ns(since, "--since")
    until_ns = None if until is None else date_ns(until, "--until", is_end=True)
    return RunFilter(script, tag, commit, kind, since_ns, until_ns, top_level=not each, limit=limit)


def date_ns(text: str, option: str, *, is_end: bool = False) -> int:
    """A date or a time in UTC, in nanoseconds; of a date its beginning, or its end. Raises `UsageError`."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(
            f"{option} {text}: must be a date, as in 2026-01-31, or a time, as in 2026-01-31T12:00"
        ) from None
    if is_end and "T" not in text and " " not in text:
        time += timedelta(days=1)
    time = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    return int(time.timestamp()) * 10**9


def open_existing(store: str | None, output: Output) -> RunStore | None:
    """The store; None, with a message, where there is none yet."""
    from perfharness.runs.store.location import find_store
    from perfharness.runs.store.register import open_store

    location = find_store(store)
    if location is not None and location.path is not None and not location.path.exists():
        output.message(f"there is no run store at {location} yet; a launch makes one")
        return None
    return open_store(store)


def as_object(run: StoredRun) -> dict[str, Any]:
    """A run as JSON, with what became of its folder."""
    from perfharness.runs.store.folders import folder_state

    return {**run.model_dump(mode="json"), "folder_state": folder_state(run)}
