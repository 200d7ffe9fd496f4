"""`perfharness launch`: check, plan, run, analyse."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.live import LaunchView
from perfharness.cli.support.options import (
    CONTEXT,
    CONTEXT_OF_A_COMMAND_LINE,
    EXIT_CHECK_FAILED,
    EXIT_FAILED,
    command_line,
    exit_code,
)
from perfharness.cli.support.output import OUTPUT, FullOutput, Output
from perfharness.cli.support.settings import given, with_settings
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.settings import Option, options_of
from perfharness.render.console import print_blocks, say
from perfharness.render.text import safe
from perfharness.render.views.plan import headline, plan_view
from perfharness.runs.launch import LaunchResult, plan_launches, run_plan
from perfharness_launcher.options import (
    PROJECT_NAME,
    SETTINGS_NAME,
    TABLE,
    LaunchOptions,
    launch_options,
)
from perfharness_launcher.plan import LaunchPlan, folders_of
from perfharness_launcher.staging import series_folder
from perfharness_launcher.supervise import Observer

if TYPE_CHECKING:
    from perfharness.runs.series.repeat_file import RepeatRequest

SERIES = "Several launches"
"""A group of options in the help."""

SHOWN = {
    "num_processes", "num_gpus", "gpu_offset", "gpus", "timeout_s", "log_level", "warmup_batches", "annotate", "tracer",
    "explain", "maximize_clocks", "output_dir", "format", "verbose", "dry_run", "np_sweep", "repeat", "config",
}  # fmt: skip
"""Options in `--help`; `--help-all` shows all."""

EPILOG = (
    f"Settings can be in {SETTINGS_NAME} next to SCRIPT, in a table [{TABLE}]; only there:"
    f" {', '.join(option.key for option in options_of(LaunchOptions).values() if not option.has_flag)}."
)


class DryRun(BaseModel):
    """Whether anything is started."""

    dry_run: Annotated[bool, Option(("--dry-run",), OUTPUT, "Print the plan and start nothing.")] = False


class Series(DryRun):
    """How many launches there are, and where the settings of each are."""

    np_sweep: Annotated[
        str | None, Option(("--np-sweep",), SERIES, "Launch with each number of processes.", metavar="N,…")
    ] = None
    cold_start: Annotated[
        int | None,
        Option(("--cold-start",), SERIES, "Start N times with a cold file cache, N with a warm one.", metavar="N"),
    ] = None
    repeat: Annotated[
        int | None,
        Option(("--repeat",), SERIES, "Launch N times, and print each number with its interval.", metavar="N"),
    ] = None
    overhead: Annotated[
        bool,
        Option(("--overhead",), SERIES, "Measure what tracing costs: launch traced and untraced in turns."),
    ] = False
    config: Annotated[
        Path | None,
        Option(
            ("--config",),
            "",
            f"Settings, in a table [{TABLE}]. [default: {SETTINGS_NAME} or {PROJECT_NAME} next to SCRIPT]",
            metavar="FILE.toml",
        ),
    ] = None


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("launch", cls=GroupedCommand, context_settings=CONTEXT_OF_A_COMMAND_LINE, epilog=EPILOG)(launch_verb)


@with_settings(LaunchOptions, shown=SHOWN)
def launch_verb(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A .py file, `python …`, or any program.", show_default=False)
    ],
    script_arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCRIPT ARGUMENTS]...", help="Everything after SCRIPT belongs to it.", show_default=False
        ),
    ] = None,
    *,
    series: Series,
    output: FullOutput,
    **settings: Any,
) -> None:
    """Run SCRIPT in N processes on M GPUs, and see where the time goes.

    Results go to stdout, progress and messages to stderr.

    Exit codes: 0 success; 1 a process failed; 2 usage; 3 a check failed, or nothing could be measured.
    """
    asked = launch_options(script, script_arguments or (), given(context, settings), series.config)
    request = parse_repeat(series.repeat, default=series.overhead)
    with naming_settings(asked):
        numbers = parse_numbers(series.np_sweep)
        launches = launches_of(asked, numbers, series.cold_start, request, overhead=series.overhead)
    plans = planned(context, launches, output, dry_run=series.dry_run)
    if series.dry_run:
        return
    if request is not None and series.overhead:
        raise typer.Exit(show_overhead(asked, request, plans, output))
    if request is not None:
        raise typer.Exit(show_repeat(asked, request, plans, output))
    if series.cold_start is not None:
        raise typer.Exit(show_cold_start(asked, plans, output))
    if numbers is not None:
        raise typer.Exit(show_sweep(asked, plans, output))
    raise typer.Exit(show_launch(plans[0], output))


def planned(
    context: typer.Context, launches: Sequence[LaunchOptions], output: Output, *, dry_run: bool
) -> list[LaunchPlan]:
    """Plan the launches, note how the command line was read, and print the plans of a dry run.

    Raises what `plan_launches` raises.
    """
    options = launches[0]
    if options.settings is not None and options.settings.names:
        output.message(f"settings from {options.settings.file}: {', '.join(options.settings.names)}")
    with naming_settings(options):
        plans = plan_launches(launches)
    misplaced = options_after_script(plans[0].facts.program.script_arguments, context)
    if misplaced:
        finding = _after_script_finding(misplaced, options.script)
        plans = [replace(plan, findings=(*plan.findings, finding)) for plan in plans]
        print(f"perfharness: {safe(finding.message)}; {safe(finding.hint)}", file=sys.stderr)
    if dry_run:
        for plan in plans:
            print_blocks(output.results, plan_view(plan))
            output.findings(plan.findings)
    return plans


@contextmanager
def naming_settings(options: LaunchOptions) -> Iterator[None]:
    """Name the file of settings in errors, because they may come from it."""
    try:
        yield
    except UsageError as error:
        if options.settings is None or not options.settings.names:
            raise
        raise UsageError(f"{error} ({', '.join(options.settings.names)}: from {options.settings.file})") from error


def launches_of(
    options: LaunchOptions,
    np_sweep: Sequence[int] | None,
    cold_start: int | None,
    request: RepeatRequest | None = None,
    *,
    overhead: bool = False,
) -> Sequence[LaunchOptions]:
    """The options of each launch. Raises `UsageError`."""
    if request is not None:
        from perfharness.runs.series.repeat import repeat_options

        if np_sweep is not None or cold_start is not None:
            raise UsageError("--repeat cannot be combined with --np-sweep or --cold-start")
        if overhead:
            from perfharness.runs.series.overhead import overhead_options

            return overhead_options(options, request)
        return repeat_options(options, request)
    if cold_start is not None:
        from perfharness.runs.series.cold_start import cold_start_options

        if np_sweep is not None:
            raise UsageError("--cold-start cannot be combined with --np-sweep")
        return cold_start_options(options, cold_start)
    if np_sweep is not None:
        from perfharness.runs.series.sweep import sweep_options

        return sweep_options(options, np_sweep)
    return [options]


def read_command_line(words: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Parse the words after `perfharness launch`; returns context and values, raises as the command does."""
    app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=None)
    register(app)
    context: Any = typer.main.get_group(app).commands["launch"].make_context("launch", [*words])
    return context, dict(context.params)


def options_after_script(arguments: Sequence[str], context: typer.Context) -> list[str]:
    """Find arguments of the script, up to a `--`, that are options of perfharness."""
    own = {name for option in context.command.params for name in (*option.opts, *option.secondary_opts)} - {"--help"}
    unescaped = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    names = [argument.partition("=")[0] for argument in unescaped if argument.startswith("-")]
    return [name for name in names if (name.replace("_", "-") if name.startswith("--") else name) in own]


def _after_script_finding(names: Sequence[str], script: str) -> Finding:
    what = ", ".join(dict.fromkeys(names))
    return Finding(
        "options-behind-script",
        Severity.NOTE,
        f"{what} after {script} was passed to the script",
        f"for perfharness, put it before {script}; if the script needs it, write `{script} -- …`",
    )


def parse_numbers(text: str | None) -> tuple[int, ...] | None:
    """`1,2,4` -> (1, 2, 4). Raises `UsageError`."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--np-sweep {text}: must be numbers of processes, as in 1,2,4,8")
    return tuple(int(part) for part in parts)


def parse_repeat(count: int | None, *, default: bool) -> RepeatRequest | None:
    """Read --repeat, or take its default; None: one launch. Raises `UsageError`."""
    if count is None and not default:
        return None
    from perfharness.runs.series.repeat import repeat_request
    from perfharness.runs.series.repeat_file import DEFAULT_COUNT

    return repeat_request(DEFAULT_COUNT if count is None else count)


@contextmanager
def watching(plan: LaunchPlan, output: Output) -> Iterator[Observer]:
    """Show progress on stderr."""
    output.message(headline(plan))
    view = LaunchView(output.messages, show_output=output.verbose)
    with view:
        yield view


@contextmanager
def watching_one(plan: LaunchPlan, output: Output) -> Iterator[Observer]:
    """The same for one of several."""
    output.message(f"\n{plan.options.output_dir}")
    with watching(plan, output) as observer:
        yield observer


def show_launch(plan: LaunchPlan, output: Output) -> int:
    """Run a plan and print its results, then what was found; returns the exit code."""
    with watching(plan, output) as observer:
        result = run_plan(plan, command_line(), observer)
    return show_result(result, output)


def show_result(result: LaunchResult, output: Output) -> int:
    """Print what a launch measured, then what was found; returns the exit code."""
    from perfharness.render.views.result import result_view

    summary = result.summary
    if output.is_json:
        output.json_document(summary.mean)
    else:
        print_blocks(output.results, result_view(summary.mean, summary.results))
    output.findings(result.findings)
    output.message(f"Results: {result.folder}. Next: perfharness report {shlex.quote(_shortest(result.folder))}")
    if not result.all_processes_well or summary.not_written is not None:
        return EXIT_FAILED
    return exit_code(result.findings)


def _shortest(folder: Path) -> str:
    """The path as a user would type it."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def show_repeat(options: LaunchOptions, request: RepeatRequest, plans: Sequence[LaunchPlan], output: Output) -> int:
    """Launch repeatedly, and print each number with its interval over launches.

    Returns 0: success; 3: a launch or a check failed; 1: none was measured, or it was interrupted.
    """
    from perfharness.render.terminal.series import print_repeat
    from perfharness.runs.series.repeat import plan_repeats, run_repeats

    findings, interrupted = [], False
    missing: Sequence[Finding] = ()  # from the history: reported once
    (case,) = plan_repeats([options], request, [command_line()], [plans])
    for one in run_repeats([case], partial(watching_one, output=output), output.message):
        interrupted = interrupted or one.interrupted
        if one.error is not None:
            say(output.errors, str(one.error))
        if one.result is not None:
            name = one.row.folder
            findings += [
                replace(finding, process=f"{name}/{finding.process}" if finding.process else name)
                for finding in one.result.findings
                if finding not in one.result.history_findings
            ]
            missing = one.result.history_findings
    repeat = case.repeat
    if output.is_json:
        output.json_document(repeat.model_dump(mode="json"))
    else:
        print_repeat(output.results, repeat)
    findings += [*repeat.findings, *missing]
    output.findings(findings)
    output.message(f"Results: {case.folder.absolute()}")
    if interrupted or not repeat.measured:
        return EXIT_FAILED
    return EXIT_CHECK_FAILED if len(repeat.measured) < len(repeat.rows) else exit_code(findings)


def show_overhead(options: LaunchOptions, request: RepeatRequest, plans: Sequence[LaunchPlan], output: Output) -> int:
    """Launch traced and untraced in turns, and print what tracing costs.

    Returns 0: success; 3: a launch failed, or tracing costs so much that traced times mislead, or a check; 1: nothing
    was measured of one kind, or it was interrupted.
    """
    from perfharness.render.terminal.overhead import print_overhead
    from perfharness.runs.series.file import TRACED, UNTRACED
    from perfharness.runs.series.overhead import overhead_cases, summarize_overhead
    from perfharness.runs.series.repeat import plan_repeats, run_repeats

    interrupted = False
    of_each = [plans[: request.count], plans[request.count :]]
    cases = plan_repeats(overhead_cases(options), request, [command_line()] * 2, of_each)
    with series_folder(options.output_dir, (TRACED, UNTRACED), output.message) as series:
        for one in run_repeats(cases, partial(watching_one, output=output)):
            interrupted = interrupted or one.interrupted
            if one.error is not None:
                say(output.errors, str(one.error))
        measured = summarize_overhead(options, cases, command_line())
    if output.is_json:
        output.json_document(measured.model_dump(mode="json"))
    else:
        print_overhead(output.results, measured)
    output.findings(measured.findings)
    output.message(f"Results: {series.path.absolute()}")
    if interrupted or not all(case.launches for case in cases):
        return EXIT_FAILED
    is_short = any(len(case.launches) < len(case.rows) for case in cases)
    return EXIT_CHECK_FAILED if is_short else exit_code(measured.findings)


def show_sweep(options: LaunchOptions, plans: Sequence[LaunchPlan], output: Output) -> int:
    """Run a sweep and print its curve.

    Returns 0: success; 3: some were measured, or none gave a throughput; 1: none was measured, or it was interrupted.
    """
    from perfharness.render.charts.drawing import draw as draw_pictures
    from perfharness.render.charts.scaling import SCALING_PAGE, scaling_picture
    from perfharness.render.terminal.series import print_scaling
    from perfharness.runs.series.sweep import run_sweep, summarize_sweep, sweep_exit_code

    launches = []
    with series_folder(options.output_dir, folders_of(plans), output.message) as series:
        for one in run_sweep(plans, command_line(), partial(watching_one, output=output)):
            launches.append(one)
            if one.error is not None:
                say(output.errors, str(one.error))
            if one.result is not None:
                output.findings([*one.result.summary.findings, *one.result.history_findings])
        swept = summarize_sweep(options, plans, launches, command_line())
        rows = [point.row for point in swept.scaling.points]
        if any(row.items_per_second or row.latency_p50_ms for row in rows):
            try:
                draw_pictures([scaling_picture(swept.scaling)], swept.folder, SCALING_PAGE)
            except PerfHarnessError as error:
                output.message(str(error))
    if output.is_json:
        output.json_document(swept.scaling.model_dump(mode="json"))
    else:
        print_scaling(output.results, swept.scaling)
    output.message(f"Results: {series.path.absolute()}")
    return sweep_exit_code(launches)


def show_cold_start(options: LaunchOptions, plans: Sequence[LaunchPlan], output: Output) -> int:
    """Run cold starts and print their table; returns the exit code."""
    from perfharness.render.terminal.series import print_cold_start
    from perfharness.runs.series.cold_start import cold_start_exit_code, run_cold_start, summarize_cold_start

    launches = []
    with series_folder(options.output_dir, folders_of(plans), output.message) as series:
        for one in run_cold_start(plans, command_line(), partial(watching_one, output=output)):
            launches.append(one)
            measured = summarize_cold_start(options, plans, launches, command_line())
    if output.is_json:
        output.json_document(measured.found.model_dump(mode="json"))
    else:
        print_cold_start(output.results, measured.found)
    output.message(f"Results: {series.path.absolute()}")
    return cold_start_exit_code(measured.found, is_complete=measured.is_complete)
