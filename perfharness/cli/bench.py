"""`perfharness bench`: a suite of models, backends, precisions and batch sizes; sweeps, start-up, results again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from perfharness.cli.bench_options import (
    CASES,
    MEASURING,
    RESULTS,
    Backends,
    Baseline,
    CaseTimeout,
    Charts,
    Device,
    Gpu,
    InputShape,
    Iterations,
    MaxEnergy,
    MaxLatency,
    MaxLoss,
    MemoryBudget,
    MemoryLimit,
    Metric,
    MetricDirection,
    Models,
    OutputDir,
    Passes,
    Percentile,
    Precisions,
    RareHidden,
    Resume,
    RetryFailed,
    SuiteArgument,
    Warmup,
    check_charts,
    check_retry,
    check_utf8,
    command_line,
    exit_code,
    resume_command,
    say,
    say_drawn,
    suite_options,
)
from perfharness.cli.help import FullSummaries, GroupedCommand
from perfharness.cli.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_OK
from perfharness.errors import UsageError
from perfharness.render.terminal.console import Console

if TYPE_CHECKING:
    from perfharness.model.bench_search import TargetFigure

RUN = "run"


class DefaultsToRun(FullSummaries):
    """`bench suite.toml` means `bench run suite.toml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the name of the verb in where none is given."""
        check_utf8(args)
        if not args or args[0] not in self.commands:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


class SweepCommand(RareHidden):
    """`bench sweep`, whose --latency-percentile is that of its target."""

    rare = RareHidden.rare - {"latency_percentile"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb = typer.Typer(
        cls=DefaultsToRun,
        help="Models over backends, precisions and batch sizes: speed, memory, energy, accuracy.",
        context_settings=CONTEXT,
    )
    verb.command(RUN, cls=RareHidden, context_settings=CONTEXT)(run)
    verb.command("sweep", cls=SweepCommand, context_settings=CONTEXT)(sweep)
    verb.command("start-up", cls=GroupedCommand, context_settings=CONTEXT)(start_up)
    verb.command("show", cls=GroupedCommand, context_settings=CONTEXT)(show)
    verb.command("merge", cls=GroupedCommand, context_settings=CONTEXT)(merge)
    app.add_typer(verb, name="bench")


def run(
    suite: SuiteArgument = None,
    output_dir: OutputDir = Path("bench_out"),
    model: Models = None,
    backend: Backends = None,
    precision: Precisions = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            metavar="N,…",
            help="As 1,8,32, or 1..64 for 1, 2, 4, ... 64. [default: 1]",
            rich_help_panel=CASES,
        ),
    ] = None,
    shape: InputShape = None,
    device: Device = None,
    gpu: Gpu = None,
    warmup: Warmup = None,
    iterations: Iterations = None,
    memory_limit: MemoryLimit = None,
    passes: Passes = None,
    equality: Annotated[
        bool | None,
        typer.Option(
            "--equality/--no-equality",
            help="Compare all outputs before any speed is measured.",
            show_default=False,
            rich_help_panel=MEASURING,
        ),
    ] = None,
    timeout: CaseTimeout = None,
    cool_down: Annotated[
        float | None,
        typer.Option("--cool-down", metavar="°C", help="Begin each case when the GPU is at most that warm."),
    ] = None,
    cool_down_limit: Annotated[
        float | None, typer.Option("--cool-down-limit", metavar="S", help="Wait at most that long. [default: 300]")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the order of the cases. [default: 1]")] = None,
    shuffle: Annotated[
        bool | None, typer.Option("--shuffle/--in-order", help="[default: shuffle]", show_default=False)
    ] = None,
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
    baseline: Baseline = None,
    max_latency_ms: MaxLatency = None,
    latency_percentile: Percentile = None,
    max_accuracy_loss: MaxLoss = None,
    accuracy_metric: Metric = None,
    accuracy_direction: MetricDirection = None,
    max_energy_per_item_j: MaxEnergy = None,
    charts: Charts = None,
) -> None:
    """Measure a model over backends, modes, precisions and batch sizes, each case in a process of its own.

    Options override SUITE.toml. Those that are rarely needed (order, seed, time limit, cooling down, warm-up, other
    constraints) are its keys, and listed in docs/reference/command-line.md.

    Also: `perfharness bench sweep` (batch sizes until memory ends, or the largest within a latency target),
    `perfharness bench start-up` (cold and warm starts), `perfharness bench show DIR` (results again, under other
    constraints), `perfharness bench merge A B -o DIR` (several machines side by side).

    Exit codes: 0 every case was measured or cannot run here; 1 a case failed, or the suite was interrupted; 2 the suite
    is wrong; 3 none could be measured, some gave wrong answers, or none meets the constraints.
    """
    options = suite_options(locals())
    from perfharness.analysis.bench_figures import gives_wrong_answers
    from perfharness.analysis.recommendation import is_any_unmet
    from perfharness.bench import load_suite, run_suite
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.bench.suite.run import case_order
    from perfharness.cli.bench_progress import SuiteProgress
    from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
    from perfharness.render.terminal.bench import print_suite

    made = load_suite(suite, options, equality=equality)
    check_retry(retry_failed=retry_failed, resume=resume)
    check_charts(charts)
    console, messages = Console(), Console(stderr=True)
    if dry_run:
        for case in case_order(made):
            say(console, f"{case.case_id}: {case.refusal}" if case.refusal else case.case_id)
        raise typer.Exit(EXIT_OK)
    with SuiteProgress(messages) as progress:
        result = run_suite(
            made, output_dir, resume=resume, retry_failed=retry_failed, observer=progress, command=command_line()
        )
    print_suite(console, result)
    if charts is not False:
        say_drawn(messages, lambda: bench_pictures(result), output_dir, BENCH_PAGE)
    say(messages, f"results: {output_dir.absolute()}")
    if not result.complete:
        left = sum(case.status == "not-run" for case in result.cases)
        say(messages, f"interrupted with {left} of {len(result.cases)} cases left; {RESUME_HINT}: {resume_command()}")
    bad = any(gives_wrong_answers(case) for case in result.cases) or is_any_unmet(result)
    statuses = [case.status for case in result.cases]
    raise typer.Exit(exit_code(statuses, interrupted=not result.complete, check_failed=bad))


def sweep(
    suite: SuiteArgument = None,
    output_dir: OutputDir = Path("sweep_out"),
    model: Models = None,
    backend: Backends = None,
    precision: Precisions = None,
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
    memory_limit: MemoryLimit = None,
    shape: InputShape = None,
    device: Device = None,
    gpu: Gpu = None,
    warmup: Warmup = None,
    iterations: Iterations = None,
    passes: Passes = None,
    instances: Annotated[
        int | None,
        typer.Option(
            "--instances", min=2, help="So many processes of each case concurrently, too.", rich_help_panel=MEASURING
        ),
    ] = None,
    streams: Annotated[
        int | None,
        typer.Option(
            "--streams",
            min=2,
            help="So many sessions in one process, each with a stream and a thread, too.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    timeout: CaseTimeout = None,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    charts: Charts = None,
) -> None:
    """Measure growing batch sizes, each in a process of its own, until memory, its limit or time ends them.

    With --latency-target: the largest batch size whose latency, with its whole 95 % interval, is within the target;
    then the telemetry pass is left out unless --passes names it.

    Exit codes: 0 done; 1 a case failed, or the sweep was interrupted; 2 the command line is wrong; 3 nothing could be
    measured, or no batch size is known to meet the target.
    """
    options = suite_options({**locals(), "latency_percentile": None})
    from perfharness.bench import load_sweep, run_sweep
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.cli.bench_progress import SweepProgress
    from perfharness.model.bench_search import TargetFigure
    from perfharness.render.charts.bench import SWEEP_PAGE, sweep_pictures
    from perfharness.render.terminal.sweep import print_sweep

    check_retry(retry_failed=retry_failed, resume=resume)
    if latency_percentile not in get_args(TargetFigure):
        raise UsageError(f"--latency-percentile {latency_percentile!r} is none of mean, p50, p95, p99")
    made = load_sweep(suite, options, smallest=smallest, target_ms=latency_target)
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
    )
    print_sweep(Console(), found)
    if charts is not False:
        say_drawn(messages, lambda: sweep_pictures(found), output_dir, SWEEP_PAGE)
    say(messages, f"results: {output_dir.absolute()}")
    if not found.complete:
        say(messages, f"interrupted; {RESUME_HINT}: {resume_command()}")
    missed = any(cell.target is not None and cell.target.batch_size is None for cell in found.cells)
    too_slow = {"timeout"}  # which ends a sweep as memory does
    statuses = [case.status for case in found.cases if case.status not in too_slow]
    raise typer.Exit(exit_code(statuses, interrupted=not found.complete, check_failed=missed))


def start_up(
    output_dir: OutputDir = Path("startup_out"),
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="A file, or module:function.", rich_help_panel=CASES)
    ] = "",
    backend: Annotated[str, typer.Option("--backend", metavar="NAME[/MODE]", rich_help_panel=CASES)] = "",
    precision: Annotated[str, typer.Option("--precision", metavar="P", rich_help_panel=CASES)] = "fp32",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, rich_help_panel=CASES)] = 1,
    count: Annotated[
        int,
        typer.Option("--count", min=1, help="Cold ones, and as many warm ones, in turn.", rich_help_panel=MEASURING),
    ] = 5,
    shape: InputShape = None,
    device: Device = None,
    gpu: Gpu = None,
    timeout: CaseTimeout = None,
) -> None:
    """Import, load or build, allocate, first inference: in fresh processes, with a cold and a warm file cache.

    Exit codes: 0 done; 1 interrupted, or a process failed; 3 there could be no cold ones.
    """
    options = suite_options({**locals(), "batch_size": str(batch_size), "model": [model], "backend": [backend]})
    from perfharness.bench import load_suite, run_startup
    from perfharness.bench.suite.startup import FIGURES
    from perfharness.render.terminal.series import print_cold_start

    if not model or not backend or backend.endswith("/all"):
        raise UsageError("name one --model and one --backend, as --backend torch/eager")
    messages = Console(stderr=True)
    found = run_startup(
        load_suite(None, options),
        output_dir,
        count,
        command=command_line(),
        done=lambda row: say(messages, f"{row.folder}: {row.status}"),
    )
    print_cold_start(Console(), found, FIGURES)
    say(messages, f"results: {output_dir.absolute()}")
    impossible = any(row.status == "not_run" for row in found.rows)
    statuses = [row.status for row in found.rows if row.status == "failed" or row.cache != "unknown"]
    interrupted = len(found.rows) < 2 * count + 1
    raise typer.Exit(exit_code(statuses, interrupted=interrupted, check_failed=impossible))


def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="What `perfharness bench -o`, or `bench sweep -o`, wrote.", show_default=False
        ),
    ],
    baseline: Baseline = None,
    max_latency_ms: MaxLatency = None,
    latency_percentile: Percentile = None,
    max_memory: MemoryBudget = None,
    max_accuracy_loss: MaxLoss = None,
    accuracy_metric: Metric = None,
    accuracy_direction: MetricDirection = None,
    max_energy_per_item_j: MaxEnergy = None,
    charts: Charts = None,
) -> None:
    """Print the results of a suite again, under other constraints or against another baseline; or those of a sweep.

    Measures nothing. Exit codes: 0 printed; 3 printed, and no measured case meets the constraints.
    """
    asked = {
        "max_latency_ms": max_latency_ms,
        "latency_percentile": latency_percentile,
        "memory_limit": max_memory,
        "max_accuracy_loss": max_accuracy_loss,
        "accuracy_metric": accuracy_metric,
        "accuracy_direction": accuracy_direction,
        "max_energy_per_item_j": max_energy_per_item_j,
    }
    from perfharness.analysis.recommendation import is_any_unmet
    from perfharness.bench import recommend_again
    from perfharness.bench.suite.store import is_sweep_folder, read_suite_result, read_sweep_result
    from perfharness.render.charts.bench import BENCH_PAGE, SWEEP_PAGE, bench_pictures, sweep_pictures
    from perfharness.render.terminal.bench import print_suite
    from perfharness.render.terminal.sweep import print_sweep

    console, messages = Console(), Console(stderr=True)
    place = folder if folder.is_dir() else folder.parent
    if is_sweep_folder(folder):
        if baseline is not None or any(value is not None for value in asked.values()):
            raise UsageError(f"{folder} holds a sweep, which has neither baseline nor constraints; leave them out")
        found = read_sweep_result(folder)
        print_sweep(console, found)
        check_charts(charts)
        if charts:
            say_drawn(messages, lambda: sweep_pictures(found), place, SWEEP_PAGE)
        raise typer.Exit(EXIT_OK)
    result = recommend_again(read_suite_result(folder), baseline=baseline, **asked)
    print_suite(console, result)
    check_charts(charts)
    if charts:
        say_drawn(messages, lambda: bench_pictures(result), place, BENCH_PAGE)
    raise typer.Exit(EXIT_CHECK_FAILED if is_any_unmet(result) else EXIT_OK)


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Results of `perfharness bench`, two at least.", show_default=False),
    ],
    output_dir: Annotated[
        Path, typer.Option("-o", "--output-dir", help="Folder of the comparison.", show_default=False)
    ],
    charts: Charts = None,
) -> None:
    """Put results of several machines side by side: the same cases in one row, each machine against its own baseline.

    Exit codes: 0 done; 2 fewer than two results; 3 done, and versions or models differ.
    """
    from perfharness.bench import merge_results
    from perfharness.render.charts.bench import MERGED_PAGE, merged_pictures
    from perfharness.render.terminal.bench import print_merged

    check_charts(charts)
    merged = merge_results(folders, output_dir)
    messages = Console(stderr=True)
    print_merged(Console(), merged)
    if charts is not False:
        say_drawn(messages, lambda: merged_pictures(merged), output_dir, MERGED_PAGE)
    say(messages, f"results: {output_dir.absolute()}")
    raise typer.Exit(EXIT_CHECK_FAILED if merged.differences else EXIT_OK)
