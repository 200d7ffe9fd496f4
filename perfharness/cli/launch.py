"""`perfharness launch`: check, plan, run, analyze."""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import (
    CONTEXT,
    CONTEXT_OF_A_COMMAND_LINE,
    EXIT_CHECK_FAILED,
    EXIT_FAILED,
    EXIT_OK,
    command_line,
    exit_code,
)
from perfharness.cli.support.output import OUTPUT, FullOutput, Output, results_line
from perfharness.cli.support.settings import given, with_settings
from perfharness.errors import PerfHarnessError, ResultError, UsageError
from perfharness.files import read_model
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MANIFEST_NAME, RunManifest
from perfharness.model.settings import option, options_of
from perfharness.progress import listening
from perfharness.render.text import safe
from perfharness_launcher.options import PROJECT_NAME, SETTINGS_NAME, TABLE, LaunchOptions, launch_options

if TYPE_CHECKING:
    from perfharness.runs.launch import LaunchResult
    from perfharness.runs.series.launching import SeriesRun
    from perfharness.runs.series.model import Series
    from perfharness_launcher.plan import LaunchPlan
    from perfharness_launcher.supervise import Observer

SERIES = "Several launches"

SHOWN = {
    "num_processes", "num_gpus", "gpu_offset", "gpus", "timeout_s", "log_level", "warmup_batches", "annotate", "tracer",
    "explain", "maximize_clocks", "output_dir", "format", "verbose", "dry_run", "np_sweep", "repeat", "config",
}  # fmt: skip

EPILOG = (
    f"Settings can also be in table [{TABLE}] of {SETTINGS_NAME} next to SCRIPT. Only there:"
    f" {', '.join(option.key for option in options_of(LaunchOptions).values() if not option.has_flag)}."
)


class DryRun(BaseModel):
    """The option --dry-run."""

    dry_run: bool = option("Print the plan and start nothing.", OUTPUT, default=False)


class SeriesSettings(DryRun):
    """Options of several launches, and --config."""

    np_sweep: str | None = option("Launch with each number of processes.", SERIES, "N,…")
    repeat: int | None = option("Launch N times; print means with their 95 % intervals.", SERIES, "N")
    cold: bool = option("Time start-up with a cold and a warm file cache, --repeat times each.", SERIES, default=False)
    overhead: bool = option("Measure what tracing costs: launch traced and untraced in turns.", SERIES, default=False)
    config: Path | None = option(
        f"File with a table [{TABLE}]. [default: {SETTINGS_NAME} or {PROJECT_NAME} next to SCRIPT]", "", "FILE.toml"
    )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("launch", cls=GroupedCommand, context_settings=CONTEXT_OF_A_COMMAND_LINE, epilog=EPILOG)(launch_verb)


@with_settings(LaunchOptions, shown=SHOWN)
def launch_verb(
    context: typer.Context,
    script: Annotated[str, argument("SCRIPT", "A .py file, `python …`, or any program.")],
    script_arguments: Annotated[
        list[str] | None, argument("[SCRIPT ARGUMENTS]...", "Everything after SCRIPT is passed to it.")
    ] = None,
    *,
    series: SeriesSettings,
    output: FullOutput,
    **settings: Any,
) -> None:
    """Run SCRIPT in N processes on M GPUs and see where its time goes.

    Example: perfharness launch -np 2 -o out app.py --frames 100

    Results go to stdout, progress and messages to stderr.

    Exit codes: 0 success; 1 a process failed; 2 usage; 3 nothing could be measured, or there is an error finding.
    """
    asked = launch_options(script, script_arguments or (), given(context, settings), series.config)
    numbers = parse_numbers(series.np_sweep)
    is_one = series == SeriesSettings(dry_run=series.dry_run, config=series.config)
    if is_one and asked.ray:
        raise typer.Exit(show_launch_on_ray(asked, output, is_dry=series.dry_run))
    if is_one:
        plans = planned(context, [asked], output)
        show: Callable[[], int] = partial(show_launch, plans[0], output)
    else:
        from perfharness.runs.series.launching import series_of

        kind = {"cold": series.cold, "overhead": series.overhead}
        with naming_settings(asked):
            series_run = series_of(asked, series.repeat, numbers, command=command_line(), **kind)
        series_run.plans = plans = planned(context, [one.options for one in series_run.launches], output)
        show = partial(show_series, series_run, output)
    if not series.dry_run:
        raise typer.Exit(show())
    from perfharness.render.views.plan import plan_view

    for plan in plans:
        output.show(plan_view(plan))
        output.findings(plan.findings)


def planned(context: typer.Context, launches: Sequence[LaunchOptions], output: Output) -> list[LaunchPlan]:
    """Plan the launches, and report options that were passed to the script. Raises as `plan_launches` does."""
    from perfharness.runs.launch import plan_launches

    options = launches[0]
    say_settings(options, output)
    with naming_settings(options):
        plans = plan_launches(launches)
    misplaced = options_after_script(plans[0].facts.program.script_arguments, context)
    if not misplaced:
        return plans
    finding = Finding(
        "options-behind-script",
        Severity.NOTE,
        f"{', '.join(dict.fromkeys(misplaced))} after {options.script} was passed to the script",
        f"if it is for perfharness, put it before {options.script}; if not, write `{options.script} -- …`",
    )
    print(f"perfharness: {safe(finding.message)}; {safe(finding.hint)}", file=sys.stderr)
    return [replace(plan, findings=(*plan.findings, finding)) for plan in plans]


def say_settings(options: LaunchOptions, output: Output) -> None:
    """Print which settings come from a file."""
    if options.settings is not None and options.settings.names:
        output.message(f"settings from {options.settings.file}: {', '.join(options.settings.names)}")


@contextmanager
def naming_settings(options: LaunchOptions) -> Iterator[None]:
    """Name the settings file in usage errors, because it may cause them."""
    try:
        yield
    except UsageError as error:
        if options.settings is None or not options.settings.names:
            raise
        raise UsageError(f"{error} ({', '.join(options.settings.names)}: from {options.settings.file})") from error


def read_command_line(words: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Parse the words after `perfharness launch`; return context and values. Raises as the command does."""
    app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=None)
    register(app)
    context: Any = typer.main.get_group(app).commands["launch"].make_context("launch", [*words])
    return context, dict(context.params)


def options_after_script(arguments: Sequence[str], context: typer.Context) -> list[str]:
    """Script arguments before `--` that are options of perfharness."""
    own = {name for option in context.command.params for name in (*option.opts, *option.secondary_opts)} - {"--help"}
    unescaped = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    names = [argument.partition("=")[0] for argument in unescaped if argument.startswith("-")]
    return [name for name in names if (name.replace("_", "-") if name.startswith("--") else name) in own]


def parse_numbers(text: str | None) -> tuple[int, ...] | None:
    """`1,2,4` -> (1, 2, 4). Raises `UsageError`."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--np-sweep {text}: must be numbers of processes such as 1,2,4,8")
    return tuple(int(part) for part in parts)


@contextmanager
def watching(plan: LaunchPlan, output: Output, expected_s: float | None = None) -> Iterator[Observer]:
    """Show progress on stderr.

    Args:
        expected_s: estimated duration; None takes that of the previous launch of this script.
    """
    from perfharness.cli.support.live import LaunchView
    from perfharness.render.views.plan import headline

    output.message(headline(plan))
    expected_s = expected_s or _earlier_s(plan)
    with LaunchView(output.messages, show_output=output.verbose, expected_s=expected_s) as view, listening(view):
        yield view


def _earlier_s(plan: LaunchPlan) -> float | None:
    words = [plan.options.script, *plan.options.script_arguments]
    with suppress(ResultError):
        earlier = read_model(plan.options.output_dir / MANIFEST_NAME, RunManifest)
        if earlier is not None and [earlier.script, *earlier.script_arguments] == words:
            return max((one.duration_s for one in earlier.processes if one.duration_s), default=None)
    return None


def watching_series(output: Output, count: int) -> Callable[[LaunchPlan], AbstractContextManager[Observer]]:
    """Return what shows the progress of each of several launches."""
    begin_s, done = time.monotonic(), 0

    @contextmanager
    def watch(plan: LaunchPlan) -> Iterator[Observer]:
        from perfharness.cli.support.progress import time_left

        nonlocal done
        left = time_left(begin_s, done, count)
        output.message(f"\n{plan.options.output_dir} ({done + 1} of {count}){f', {left}' if left else ''}")
        with watching(plan, output, (time.monotonic() - begin_s) / done if done else None) as observer:
            yield observer
        done += 1

    return watch


def show_launch(plan: LaunchPlan, output: Output, command: Sequence[str] = ()) -> int:
    """Run a plan, print results and findings, and return the exit code.

    Args:
        command: command line for the manifest; empty takes that of this process.
    """
    from perfharness.runs.launch import run_plan

    with watching(plan, output) as observer:
        result = run_plan(plan, command or command_line(), observer)
    show_result(result, output)
    return code_of(result)


def show_launch_on_ray(options: LaunchOptions, output: Output, *, is_dry: bool) -> int:
    """Launch on the nodes of a Ray cluster, or print their plans; return the exit code."""
    from perfharness.cli.support.live import LaunchView
    from perfharness.runs.launch import launch_on_ray, plans_on_ray

    say_settings(options, output)
    with (
        naming_settings(options),
        LaunchView(output.messages, show_output=output.verbose) as view,
        redirect_stdout(io.StringIO()),  # Ray prints pages of logs when a node is lost
    ):
        found = plans_on_ray(options, view) if is_dry else launch_on_ray(options, command_line(), view)
    if not isinstance(found, list):
        show_result(found, output)
        return code_of(found)
    for text in found:
        output.line(text)
    return EXIT_OK


def code_of(result: LaunchResult) -> int:
    """Exit code of a launch."""
    is_whole = result.all_processes_well and result.summary.not_written is None
    return exit_code(result.findings) if is_whole else EXIT_FAILED


def show_result(result: LaunchResult, output: Output) -> None:
    """Print the results and findings of a run."""
    summary = result.summary
    if output.is_json and result.handed_to is None:
        output.json_document(summary.mean)
    else:
        output.show(output.result(summary.mean, summary.results))
    output.findings(result.findings)
    output.message(f"Results: {result.handed_to}" if result.handed_to else results_line(result.folder))


def show_series(series_run: SeriesRun, output: Output) -> int:
    """Launch several times, print means and findings, and return the exit code.

    0: success; 1: no launch ended well, or interrupted; 3: a launch or a check failed, or nothing was measured.
    """
    from perfharness.render.views.series import series_view

    findings: list[Finding] = []
    of_history: Sequence[Finding] = ()  # reported once
    interrupted = False
    for one in series_run.run(watching_series(output, len(series_run.launches)), output.message):
        interrupted = interrupted or one.interrupted
        if one.error is not None:
            output.error(str(one.error))
        if one.result is not None:
            of_history = one.result.history_findings
            name = str(one.result.folder.relative_to(series_run.options.output_dir.absolute()))
            findings += [
                replace(finding, process=f"{name}/{finding.process}" if finding.process else name)
                for finding in one.result.findings
                if finding not in of_history
            ]
    series = series_run.series
    if series.kind == "processes":
        draw_scaling(series, series_run.folder, output)
    output.document(series, series_view(series))
    findings += [*series.findings, *of_history]
    output.findings(findings)
    output.message(results_line(series_run.folder.absolute()))
    if interrupted or not any(row.ended_well for row in series.rows):
        return EXIT_FAILED
    if not series.measured() or any(row.status == "failed" for row in series.rows):
        return EXIT_CHECK_FAILED
    return exit_code(findings)


def draw_scaling(series: Series, folder: Path, output: Output) -> None:
    """Draw the scaling curve of a sweep over numbers of processes into its folder."""
    from perfharness.render.charts.scaling import SCALING_PAGE, scaling_picture
    from perfharness.render.html import draw

    if series.measured():
        try:
            draw([scaling_picture(series)], folder, SCALING_PAGE)
        except PerfHarnessError as error:
            output.message(str(error))
