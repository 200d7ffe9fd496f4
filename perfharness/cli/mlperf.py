"""`perfharness mlperf`: a test of MLPerf LoadGen on a model, traced."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfharness.cli.launch import DryRunOption, Shown
from perfharness.cli.support.help import GroupedCommand, HelpAll
from perfharness.cli.support.limits import are_kept, limits_of
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK, command_line, exit_code
from perfharness.cli.support.output import Format, FormatOption, Output, RareQuietOption, RareVerboseOption
from perfharness.cli.support.settings import given, with_settings
from perfharness.load.mlperf.settings import LAUNCH_SETTINGS, TEST, MlperfSettings
from perfharness.render.terminal.plan import print_plan
from perfharness_launcher.plan.options import LaunchOptions

EPILOG = "`perfharness mlperf --help-all` shows all options."


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("mlperf", cls=GroupedCommand, context_settings=CONTEXT, epilog=EPILOG)(mlperf_verb)


@with_settings(
    MlperfSettings,
    LaunchOptions,
    only={*MlperfSettings.model_fields, *LAUNCH_SETTINGS},
    rare={*LAUNCH_SETTINGS} - {"output_dir"},
)
def mlperf_verb(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model file, or module:function.", show_default=False)
    ],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 3 where it is met: 'loadgen_rate < 900', 'latency.p99 > 20ms'; may be given again.",
            rich_help_panel=TEST,
        ),
    ] = None,
    output_format: FormatOption = Format.TEXT,
    quiet: RareQuietOption = False,
    verbose: RareVerboseOption = False,
    dry_run: DryRunOption = False,
    help_all: HelpAll = False,
    **settings: Any,
) -> None:
    """Run MLPerf LoadGen, the library of MLCommons, on MODEL over a backend, in a traced process.

    LoadGen's verdict and figures are printed, its logs are kept, and the run folder is as of `perfharness launch`: a
    batch a query, with its stages.

    Exit codes: 0 VALID; 1 the process failed; 2 usage; 3 INVALID by LoadGen's own verdict, queries failed, nothing
    could be measured, or a condition of --fail-if is met.
    """
    del help_all
    from perfharness.load.mlperf.run import plan_mlperf, run_mlperf
    from perfharness.render.terminal.mlperf import print_mlperf

    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    limits = limits_of(fail_if or ())
    plan = plan_mlperf(model, given(context, settings))
    if dry_run:
        print_plan(plan.launch, output.results)
        output.findings(plan.launch.findings)
        raise typer.Exit(EXIT_OK)
    run = run_mlperf(plan, command_line(), Shown(output).watching)
    if output.is_json:
        output.json(run.result.model_dump(mode="json"))
    else:
        print_mlperf(output.results, run.result, run.launch.summary.mean, run.launch.summary.results)
    output.findings(run.findings)
    output.message(f"results: {run.launch.folder}")
    if run.result.status != "ok" or not run.launch.all_processes_well or run.launch.summary.not_written is not None:
        raise typer.Exit(EXIT_FAILED)
    kept = are_kept(run.launch.folder, limits, output)
    raise typer.Exit(exit_code(run.findings) if kept else EXIT_CHECK_FAILED)
