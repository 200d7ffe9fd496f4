"""`perfharness bench`: models over backends, modes, precisions and batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from perfharness.cli.support.bench_options import (
    SHOWN,
    BenchSettings,
    SuiteOptions,
    check_utf8,
    resume_command,
    say_drawn,
    suite_options,
)
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_OK, command_line
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.render.console import Console, print_blocks, say

if TYPE_CHECKING:
    from perfharness.bench.suite.suite import Suite
    from perfharness.model.bench_suite import TargetFigure
    from perfharness.render.charts.drawing import Picture
SIZES = (1, 1024)
"""Smallest and largest batch size of --find-batch, where --batch-size names no range."""

TARGET = ("max_latency_ms", "latency_percentile")
OF_A_SUITE = (
    "dry_run", "equality", "seed", "shuffle", "baseline", "max_accuracy_loss", "accuracy_metric", "accuracy_direction",
    "max_energy_per_item_j",
)  # fmt: skip
"""Options that only a suite has: --find-batch and --start-up choose their own cases and recommend nothing."""

OF_MANY_ROUNDS = (
    *OF_A_SUITE, *TARGET, "resume", "retry_failed", "charts", "warmup", "iterations", "memory_limit", "passes",
    "cool_down", "cool_down_limit",
)  # fmt: skip
"""Options that --start-up does not have: it runs one round in each process."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench", cls=GroupedCommand, context_settings=CONTEXT)(bench)


@with_settings(shown=SHOWN)
def bench(
    suite: Annotated[
        Path | None,
        typer.Argument(metavar="[SUITE.toml]", help="The suite; or name models and backends.", show_default=False),
    ] = None,
    *,
    options: SuiteOptions,
    run: BenchSettings,
) -> None:
    """Measure models over backends, modes, precisions and batch sizes, each case in a process of its own.

    Options override SUITE.toml. Those that are rarely needed (order, seed, time limit, cooling down, warm-up, other
    constraints) are its keys; `perfharness bench --help-all` shows them.

    `perfharness report DIR` writes the results as a page, of several suites side by side; `perfharness compare A B`
    says which cases are faster. With --resume a finished suite is printed again, under other constraints.

    Exit codes: 0 every case was measured or cannot run here; 1 a case failed, or it was interrupted; 2 the suite or the
    command line is wrong; 3 none could be measured, some gave wrong answers, or none meets the constraints.
    """
    check_utf8(command_line())
    if run.retry_failed and not run.resume:
        raise UsageError("--retry-failed goes with --resume")
    if run.find_batch and run.start_up is not None:
        raise UsageError("--find-batch and --start-up measure different things; ask for one of them")
    if run.start_up is not None:
        _refuse(OF_MANY_ROUNDS, options, run, "--start-up")
        raise typer.Exit(_start_up(suite, run.start_up, options, run))
    if run.find_batch:
        _refuse(OF_A_SUITE, options, run, "--find-batch")
        raise typer.Exit(_find_batch(suite, options, run))
    from perfharness.bench import load_suite

    made = load_suite(suite, suite_options(options))
    raise typer.Exit(_list_cases(made) if run.dry_run else _suite(made, run))


def _refuse(names: tuple[str, ...], options: SuiteOptions, run: BenchSettings, measurement: str) -> None:
    """Raise `UsageError` where an option was given that a measurement would ignore."""
    given = {**run.model_dump(exclude_defaults=True), **options.model_dump(exclude_none=True)}
    for name in names:
        if name in given:
            raise UsageError(f"--{name.replace('_', '-')} does not go with {measurement}; leave it out")


def _list_cases(made: Suite) -> int:
    from perfharness.bench.suite.run import case_order

    for case in case_order(made):
        say(Console(), f"{case.case_id}: {case.refusal}" if case.refusal else case.case_id)
    return EXIT_OK


def _suite(made: Suite, run: BenchSettings) -> int:
    from perfharness.bench import run_suite
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.bench.suite.run import suite_exit_code
    from perfharness.cli.support.bench_progress import BenchProgress
    from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
    from perfharness.render.views.bench import suite_view

    messages = Console(stderr=True)
    with BenchProgress(messages) as progress:
        result = run_suite(
            made,
            run.output_dir,
            resume=run.resume,
            retry_failed=run.retry_failed,
            observer=progress,
            command=command_line(),
            history=run.history,
        )
    print_blocks(Console(), suite_view(result))
    _draw(run, messages, lambda: bench_pictures(result), BENCH_PAGE)
    say(messages, f"Results: {run.output_dir.absolute()}")
    if not result.complete:
        left = sum(case.status == "not-run" for case in result.cases)
        say(messages, f"interrupted with {left} of {len(result.cases)} cases left; {RESUME_HINT}: {resume_command()}")
    return suite_exit_code(result)


def _find_batch(path: Path | None, options: SuiteOptions, run: BenchSettings) -> int:
    from perfharness.bench import load_sweep, run_sweep
    from perfharness.bench.search.run import search_exit_code
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.cli.support.bench_progress import BenchProgress
    from perfharness.model.bench_suite import TargetFigure
    from perfharness.render.charts.bench import SWEEP_PAGE, sweep_pictures
    from perfharness.render.views.bench import sweep_view

    target_ms, percentile = options.max_latency_ms, options.latency_percentile or "p99"
    if target_ms is not None and target_ms <= 0:
        raise UsageError(f"--max-latency-ms {target_ms:g}: must be more than 0")
    if percentile not in get_args(TargetFigure):
        raise UsageError(f"--latency-percentile {percentile!r}: --find-batch takes {', '.join(get_args(TargetFigure))}")
    smallest, largest = _range_of(options.batch_size)
    others = suite_options(options, but=("batch_size", *TARGET))
    made = load_sweep(path, others, smallest=smallest, target_ms=target_ms)
    messages = Console(stderr=True)
    with BenchProgress(messages, is_sweep=True) as progress:
        found = run_sweep(
            made,
            run.output_dir,
            smallest=smallest,
            largest=largest,
            target_ms=target_ms,
            figure=cast("TargetFigure", percentile),
            resume=run.resume,
            retry_failed=run.retry_failed,
            observer=progress,
            command=command_line(),
            history=run.history,
        )
    print_blocks(Console(), sweep_view(found))
    _draw(run, messages, lambda: sweep_pictures(found), SWEEP_PAGE)
    say(messages, f"Results: {run.output_dir.absolute()}")
    if not found.complete:
        say(messages, f"interrupted; {RESUME_HINT}: {resume_command()}")
    return search_exit_code(found)


def _range_of(sizes: list[int] | str | None) -> tuple[int, int]:
    """Smallest and largest of `1..64`. Raises `UsageError`."""
    if sizes is None:
        return SIZES
    if isinstance(sizes, list):
        raise UsageError(f"--batch-size {','.join(map(str, sizes))}: --find-batch takes a range, as 1..1024")
    smallest, _, largest = sizes.partition("..")
    return int(smallest), int(largest)


def _start_up(path: Path | None, count: int, options: SuiteOptions, run: BenchSettings) -> int:
    from perfharness.analysis.suites.bench_figures import cases_exit_code
    from perfharness.bench import load_suite, run_startup
    from perfharness.render.views.series import series_view

    messages = Console(stderr=True)
    found = run_startup(
        load_suite(path, suite_options(options)),
        run.output_dir,
        count,
        command=command_line(),
        done=lambda row: say(messages, f"{row.folder}: {row.status}"),
    )
    print_blocks(Console(), series_view(found))
    say(messages, f"Results: {run.output_dir.absolute()}")
    impossible = any(row.status == "not_run" for row in found.rows)
    statuses = [row.status for row in found.rows if row.status == "failed" or row.label != "first"]
    return cases_exit_code(statuses, interrupted=len(found.rows) < 2 * count + 1, check_failed=impossible)


def _draw(run: BenchSettings, messages: Console, make: Callable[[], Sequence[Picture]], page: str) -> None:
    if run.charts is not False:
        say_drawn(messages, make, run.output_dir, page)
