"""`perfharness bench`: measure models over backends, modes, precisions and batch sizes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfharness.cli.support.bench_options import (
    SHOWN,
    BenchSettings,
    SuiteOptions,
    check_utf8,
    say_drawn,
    suite_options,
)
from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import CONTEXT, EXIT_OK, command_line
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.render.console import Console, print_blocks, say

if TYPE_CHECKING:
    from perfharness.bench.suite import Suite

RECOMMENDING = ("baseline", "max_accuracy_loss", "accuracy_metric", "accuracy_direction", "max_energy_per_item_j")
REFUSED = {
    "find_batch": ("dry_run", "equality", "seed", "shuffle", *RECOMMENDING),
    "start_up": (
        *("find_batch", "dry_run", "equality", "seed", "shuffle", *RECOMMENDING, "max_latency_ms"),
        *("latency_percentile", "resume", "retry_failed", "charts", "warmup", "iterations", "duration"),
        *("memory_limit", "passes", "layers", "cool_down", "cool_down_limit", "metrics"),
    ),
}
"""Options that --find-batch and --start-up do not take: they choose their own cases and recommend nothing."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench", cls=GroupedCommand, context_settings=CONTEXT)(bench)


@with_settings(shown=SHOWN)
def bench(
    suite: Annotated[Path | None, argument("[SUITE.toml]", "The suite; or name models and backends.")] = None,
    *,
    options: SuiteOptions,
    run: BenchSettings,
) -> None:
    """Measure models over backends, modes, precisions and batch sizes, each case in its own process.

    Options override SUITE.toml. `perfharness bench --help-all` also shows the rarely needed ones: order, seed, time
    limit, cooling down, warm-up, further constraints.

    `perfharness report DIR…` writes one page for one or more suites. `perfharness compare A B` shows which cases are
    faster. --resume also prints a finished suite again, with new constraints.

    Exit codes: 0 every case was measured or cannot run here; 1 a case failed, or interrupted; 2 usage; 3 no case could
    be measured, some gave wrong answers, or none meets the constraints.
    """
    check_utf8(command_line())
    if run.retry_failed and not run.resume:
        raise UsageError("--retry-failed needs --resume")
    given = {**run.model_dump(exclude_defaults=True), **options.model_dump(exclude_none=True)}
    measurement = next((name for name in ("start_up", "find_batch") if name in given), "")
    for name in (name for name in REFUSED.get(measurement, ()) if name in given):
        raise UsageError(f"--{measurement.replace('_', '-')} does not take --{name.replace('_', '-')}; drop it")
    from perfharness.bench import load_suite

    made = load_suite(suite, suite_options(options))
    if run.start_up is not None:
        raise typer.Exit(_start_up(made, run.start_up, run.output_dir))
    raise typer.Exit(_list_cases(made) if run.dry_run else _suite(made, run))


def _list_cases(made: Suite) -> int:
    from perfharness.bench.plan import in_order, plan_suite

    for case in in_order(made, plan_suite(made).cases):
        say(Console(), f"{case.case_id}: {case.refusal}" if case.refusal else case.case_id)
    return EXIT_OK


def _suite(made: Suite, run: BenchSettings) -> int:
    from perfharness.bench import run_suite
    from perfharness.bench.run import suite_exit_code
    from perfharness.cli.support.bench_progress import BenchProgress
    from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
    from perfharness.render.views.bench import suite_view

    messages = Console(stderr=True)
    with BenchProgress(messages, is_search=run.find_batch) as progress:
        own = run.model_dump(include={"find_batch", "resume", "retry_failed", "history", "metrics"})
        result = run_suite(made, run.output_dir, observer=progress, command=command_line(), **own)
    print_blocks(Console(), suite_view(result))
    if run.charts is not False:
        say_drawn(messages, lambda: bench_pictures(result), run.output_dir, BENCH_PAGE)
    report = f". Next: perfharness report {shlex.quote(str(run.output_dir))}"
    has_any = any(one.status == "ok" for one in result.cases)
    say(messages, f"Results: {run.output_dir.absolute()}{report if has_any else ''}")
    if not result.complete:
        words = [*(word for word in command_line() if word != "--resume"), "--resume"]
        say(messages, f"Interrupted. To continue: {shlex.join(words)}")
    return suite_exit_code(result)


def _start_up(made: Suite, count: int, output_dir: Path) -> int:
    from perfharness.analysis.suites.bench_figures import cases_exit_code
    from perfharness.bench import run_startup
    from perfharness.render.views.series import series_view

    messages = Console(stderr=True)
    found = run_startup(
        made,
        output_dir,
        count,
        command=command_line(),
        done=lambda row: say(messages, f"{row.folder}: {row.status}"),
    )
    print_blocks(Console(), series_view(found))
    say(messages, f"Results: {output_dir.absolute()}")
    impossible = any(row.status == "not_run" for row in found.rows)
    statuses = [row.status for row in found.rows if row.status == "failed" or row.label != "first"]
    return cases_exit_code(statuses, interrupted=len(found.rows) < 2 * count + 1, check_failed=impossible)
