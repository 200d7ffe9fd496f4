"""`perfharness bench`: a suite of models, backends, precisions and batch sizes; sweeps, start-up, results again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from perfharness.cli.support.bench_options import (
    CASES,
    MEASURING,
    PANELS,
    RECOMMENDATION,
    RESULTS,
    Charts,
    OutputDir,
    Resume,
    RetryFailed,
    Store,
    Stored,
    SuiteArgument,
    check_charts,
    check_retry,
    check_utf8,
    exit_code,
    resume_command,
    say_drawn,
    suite_options,
    with_suite_options,
)
from perfharness.cli.support.help import FullSummaries, GroupedCommand, HelpAll
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_OK, command_line
from perfharness.errors import UsageError
from perfharness.render.terminal.console import Console, say

if TYPE_CHECKING:
    from perfharness.model.bench_suite import TargetFigure

RUN = "run"
OF_THE_CASE = ("shape", "device", "gpu", "timeout")
OF_BOTH = (*OF_THE_CASE, "model", "backend", "precision", "warmup", "iterations", "memory_limit", "passes")
"""Options of a suite and of a sweep."""


class DefaultsToRun(FullSummaries):
    """`bench suite.toml` means `bench run suite.toml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the name of the verb in where none is given."""
        check_utf8(args)
        if not args or args[0] not in self.commands:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb = typer.Typer(
        cls=DefaultsToRun,
        help="Models over backends, precisions and batch sizes: speed, memory, energy, accuracy.",
        context_settings=CONTEXT,
    )
    for name, function in {RUN: run, "sweep": sweep, "start-up": start_up, "show": show}.items():
        verb.command(name, cls=GroupedCommand, context_settings=CONTEXT)(function)
    app.add_typer(verb, name="bench")


@with_suite_options(
    *OF_BOTH, "batch_size", "equality", "cool_down", "cool_down_limit", "seed", "shuffle", "baseline",
    *(name for name in PANELS[RECOMMENDATION] if name != "max_memory"), hides_rare=True,
)  # fmt: skip
def run(
    suite: SuiteArgument = None,
    output_dir: OutputDir = Path("bench_out"),
    *,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, print the cases in their order, start nothing.",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    charts: Charts = None,
    store: Store = None,
    stored: Stored = True,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Measure a model over backends, modes, precisions and batch sizes, each case in a process of its own.

    Options override SUITE.toml. Those that are rarely needed (order, seed, time limit, cooling down, warm-up, other
    constraints) are its keys; `perfharness bench run --help-all` shows them.

    Also: `perfharness bench sweep` (batch sizes until memory ends, or the largest within a latency target),
    `perfharness bench start-up` (cold and warm starts), `perfharness bench show DIR` (results again, under other
    constraints).

    Exit codes: 0 every case was measured or cannot run here; 1 a case failed, or the suite was interrupted; 2 the suite
    is wrong; 3 none could be measured, some gave wrong answers, or none meets the constraints.
    """
    del help_all
    from perfharness.bench import load_suite, run_suite
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.bench.suite.run import case_order, suite_exit_code
    from perfharness.cli.support.bench_progress import SuiteProgress
    from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
    from perfharness.render.terminal.bench import print_suite
    from perfharness.runs.store.register import StoreSettings

    made = load_suite(suite, suite_options(options))
    check_retry(retry_failed=retry_failed, resume=resume)
    check_charts(charts)
    console, messages = Console(), Console(stderr=True)
    if dry_run:
        for case in case_order(made):
            say(console, f"{case.case_id}: {case.refusal}" if case.refusal else case.case_id)
        raise typer.Exit(EXIT_OK)
    with SuiteProgress(messages) as progress:
        result = run_suite(
            made,
            output_dir,
            resume=resume,
            retry_failed=retry_failed,
            observer=progress,
            command=command_line(),
            store=StoreSettings(store, stored=stored),
        )
    print_suite(console, result)
    if charts is not False:
        say_drawn(messages, lambda: bench_pictures(result), output_dir, BENCH_PAGE)
    say(messages, f"results: {output_dir.absolute()}")
    if not result.complete:
        left = sum(case.status == "not-run" for case in result.cases)
        say(messages, f"interrupted with {left} of {len(result.cases)} cases left; {RESUME_HINT}: {resume_command()}")
    raise typer.Exit(suite_exit_code(result))


@with_suite_options(*OF_BOTH, hides_rare=True)
def sweep(
    suite: SuiteArgument = None,
    output_dir: OutputDir = Path("sweep_out"),
    *,
    smallest: Annotated[int, typer.Option("--smallest", min=1, help="Smallest batch size.", rich_help_panel=CASES)] = 1,
    largest: Annotated[int, typer.Option("--largest", min=1, help="Largest batch size.", rich_help_panel=CASES)] = 1024,
    latency_target: Annotated[
        float | None,
        typer.Option(
            "--latency-target",
            metavar="MS",
            help="Search for the largest batch whose latency is within it.",
            rich_help_panel=CASES,
        ),
    ] = None,
    latency_percentile: Annotated[
        str,
        typer.Option(
            "--latency-percentile",
            metavar="P",
            help="Of --latency-target: mean, p50, p95 or p99.",
            rich_help_panel=CASES,
        ),
    ] = "p99",
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    charts: Charts = None,
    store: Store = None,
    stored: Stored = True,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Measure growing batch sizes, each in a process of its own, until memory, its limit or time ends them.

    With --latency-target: the largest batch size whose latency, with its whole 95 % interval, is within the target;
    then the telemetry pass is left out unless --passes names it.

    Exit codes: 0 done; 1 a case failed, or the sweep was interrupted; 2 the command line is wrong; 3 nothing could be
    measured, or no batch size is known to meet the target.
    """
    del help_all
    from perfharness.bench import load_sweep, run_sweep
    from perfharness.bench.search.run import search_exit_code
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.cli.support.bench_progress import SweepProgress
    from perfharness.model.bench_suite import TargetFigure
    from perfharness.render.charts.bench import SWEEP_PAGE, sweep_pictures
    from perfharness.render.terminal.sweep import print_sweep
    from perfharness.runs.store.register import StoreSettings

    check_retry(retry_failed=retry_failed, resume=resume)
    if latency_percentile not in get_args(TargetFigure):
        raise UsageError(f"--latency-percentile {latency_percentile!r} is none of mean, p50, p95, p99")
    made = load_sweep(suite, suite_options(options), smallest=smallest, target_ms=latency_target)
    check_charts(charts)
    messages = Console(stderr=True)
    found = run_sweep(
        made,
        output_dir,
        smallest=smallest,
        largest=largest,
        target_ms=latency_target,
        figure=cast("TargetFigure", latency_percentile),
        resume=resume,
        retry_failed=retry_failed,
        observer=SweepProgress(messages),
        command=command_line(),
        store=StoreSettings(store, stored=stored),
    )
    print_sweep(Console(), found)
    if charts is not False:
        say_drawn(messages, lambda: sweep_pictures(found), output_dir, SWEEP_PAGE)
    say(messages, f"results: {output_dir.absolute()}")
    if not found.complete:
        say(messages, f"interrupted; {RESUME_HINT}: {resume_command()}")
    raise typer.Exit(search_exit_code(found))


@with_suite_options(*OF_THE_CASE)
def start_up(
    output_dir: OutputDir = Path("startup_out"),
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="A file, or module:function.", rich_help_panel=CASES)
    ] = "",
    backend: Annotated[str, typer.Option("--backend", metavar="NAME[/MODE]", rich_help_panel=CASES)] = "",
    precision: Annotated[str, typer.Option("--precision", metavar="P", rich_help_panel=CASES)] = "fp32",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, rich_help_panel=CASES)] = 1,
    *,
    count: Annotated[
        int,
        typer.Option("--count", min=1, help="Cold ones, and as many warm ones, in turn.", rich_help_panel=MEASURING),
    ] = 5,
    store: Store = None,
    stored: Stored = True,
    **options: Any,
) -> None:
    """Import, load or build, allocate, first inference: in fresh processes, with a cold and a warm file cache.

    Exit codes: 0 done; 1 interrupted, or a process failed; 3 there could be no cold ones.
    """
    case = {"models": [model], "backends": [backend], "precisions": [precision], "batch_sizes": [batch_size]}
    from perfharness.bench import load_suite, run_startup
    from perfharness.bench.suite.startup import FIGURES
    from perfharness.render.terminal.series import print_cold_start
    from perfharness.runs.store.register import StoreSettings

    if not model or not backend or backend.endswith("/all"):
        raise UsageError("name one --model and one --backend, as --backend torch/eager")
    messages = Console(stderr=True)
    found = run_startup(
        load_suite(None, {**case, **suite_options(options)}),
        output_dir,
        count,
        command=command_line(),
        done=lambda row: say(messages, f"{row.folder}: {row.status}"),
        store=StoreSettings(store, stored=stored),
        not_stored=lambda finding: say(messages, f"warning: {finding.message}"),
    )
    print_cold_start(Console(), found, FIGURES)
    say(messages, f"results: {output_dir.absolute()}")
    impossible = any(row.status == "not_run" for row in found.rows)
    statuses = [row.status for row in found.rows if row.status == "failed" or row.cache != "unknown"]
    interrupted = len(found.rows) < 2 * count + 1
    raise typer.Exit(exit_code(statuses, interrupted=interrupted, check_failed=impossible))


@with_suite_options("baseline", *PANELS[RECOMMENDATION])
def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="What `perfharness bench -o`, or `bench sweep -o`, wrote.", show_default=False
        ),
    ],
    *,
    charts: Charts = None,
    **options: Any,
) -> None:
    """Print the results of a suite again, under other constraints or against another baseline; or those of a sweep.

    Measures nothing. Exit codes: 0 printed; 3 printed, and no measured case meets the constraints.
    """
    from perfharness.analysis.suites.recommendation import is_any_unmet
    from perfharness.bench import recommend_again
    from perfharness.bench.suite.store import SUITE, SWEEP
    from perfharness.render.charts.bench import BENCH_PAGE, SWEEP_PAGE, bench_pictures, sweep_pictures
    from perfharness.render.terminal.bench import print_suite
    from perfharness.render.terminal.sweep import print_sweep

    check_charts(charts)
    asked = {key.rpartition(".")[2]: value for key, value in suite_options(options).items()}
    console, messages = Console(), Console(stderr=True)
    place = folder if folder.is_dir() else folder.parent
    if SWEEP.is_in(folder):
        if asked:
            raise UsageError(f"{folder} holds a sweep, which has neither baseline nor constraints; leave them out")
        found = SWEEP.read(folder)
        print_sweep(console, found)
        if charts:
            say_drawn(messages, lambda: sweep_pictures(found), place, SWEEP_PAGE)
        raise typer.Exit(EXIT_OK)
    result = recommend_again(SUITE.read(folder), **asked)
    print_suite(console, result)
    if charts:
        say_drawn(messages, lambda: bench_pictures(result), place, BENCH_PAGE)
    raise typer.Exit(EXIT_CHECK_FAILED if is_any_unmet(result) else EXIT_OK)
