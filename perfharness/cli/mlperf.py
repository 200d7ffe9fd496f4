"""`perfharness mlperf`: run an MLPerf LoadGen test on a model, traced."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from perfharness.cli.launch import DryRun, watching
from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.limits import are_kept, limits_of
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK, command_line, exit_code
from perfharness.cli.support.output import FullOutput, results_line
from perfharness.cli.support.settings import given, with_settings
from perfharness.load.mlperf import LAUNCH_SETTINGS, TEST, MlperfSettings
from perfharness.model.settings import option
from perfharness.render.views.plan import plan_view
from perfharness_launcher.options import LaunchOptions

SHOWN = {
    "backend", "precision", "max_batch", "scenario", "benchmark", "user_conf", "target_qps", "target_latency_ms",
    "min_duration_s", "min_queries", "dataset", "output_dir", "fail_if", "format", "dry_run",
}  # fmt: skip


class Checks(DryRun):
    """Options of `mlperf` besides those of the test."""

    fail_if: list[str] = option(
        "Exit with 3 if CONDITION is met: 'loadgen_rate < 900', 'latency.p99 > 20ms'. Repeatable.",
        TEST,
        "CONDITION",
        default=[],
    )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("mlperf", cls=GroupedCommand, context_settings=CONTEXT)(mlperf_verb)


@with_settings(MlperfSettings, LaunchOptions, only={*MlperfSettings.model_fields, *LAUNCH_SETTINGS}, shown=SHOWN)
def mlperf_verb(
    context: typer.Context,
    model: Annotated[str, argument("MODEL", "A model file, or module:function.")],
    *,
    checks: Checks,
    output: FullOutput,
    **settings: Any,
) -> None:
    """Run MLPerf LoadGen (MLCommons) on MODEL in a traced process.

    Prints LoadGen's verdict and figures and keeps its logs. Writes a run folder as `perfharness launch` does; each
    query is a batch.

    Exit codes: 0 VALID; 1 the process failed; 2 usage; 3 INVALID, queries failed, nothing could be measured, or a
    --fail-if condition is met.
    """
    from perfharness.load.mlperf import plan_mlperf, run_test
    from perfharness.render.views.mlperf import mlperf_view

    limits = limits_of(checks.fail_if)
    plan = plan_mlperf(model, given(context, settings))
    if checks.dry_run:
        output.show(plan_view(plan.launch))
        output.findings(plan.launch.findings)
        raise typer.Exit(EXIT_OK)
    run = run_test(plan, command_line(), partial(watching, output=output))
    output.document(run.result, mlperf_view(run.result))
    if not output.is_json:
        output.show(output.result(run.launch.summary.mean, run.launch.summary.results))
    output.findings(run.findings)
    output.message(results_line(run.launch.folder))
    if run.result.status != "ok" or not run.launch.all_processes_well or run.launch.summary.not_written is not None:
        raise typer.Exit(EXIT_FAILED)
    kept = are_kept(run.launch.folder, limits, output)
    raise typer.Exit(exit_code(run.findings) if kept else EXIT_CHECK_FAILED)
