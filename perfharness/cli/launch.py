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
from typing import Annotated

import typer

from perfharness.cli.help import GroupedCommand
from perfharness.cli.live import LaunchView
from perfharness.cli.options import (
    CONTEXT_OF_A_COMMAND_LINE,
    EXIT_CHECK_FAILED,
    EXIT_FAILED,
    EXIT_OK,
    MEANING,
    BatchPattern,
    ClockRefusal,
    CpuBindOption,
    Domain,
    LogLevelOption,
    PlotsOption,
    RejectThrottled,
    TracerOption,
    exit_code,
    split_commas,
)
from perfharness.cli.output import OUTPUT, Format, FormatOption, Output, QuietOption, VerboseOption
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.placement import cpu_list
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.model.text import safe
from perfharness.render.charts.drawing import require_charts
from perfharness.report.console import Console, say
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.plan.options import (
    DEFAULT_BARRIER_TIMEOUT_S,
    DEFAULT_COOL_DOWN_LIMIT_S,
    DEFAULT_MEASURE_IDLE_S,
    DEFAULT_OUTPUT_DIR,
    DEFAULT_SAMPLE_INTERVAL_MS,
    DEFAULT_WARMUP_BATCHES,
    LaunchOptions,
)
from perfharness_launcher.processes.orphans import adopting_orphans
from perfharness_launcher.processes.spawn import planned_command
from perfharness_launcher.processes.supervise import Observer

PROCESSES = "Processes and GPUs"
TRACING = "Tracing"
TOGETHER = "Starting together"
MACHINE = "Telemetry and clocks"
SERIES = "Several launches"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("launch", cls=GroupedCommand, context_settings=CONTEXT_OF_A_COMMAND_LINE)(launch_verb)


def launch_verb(
    context: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A .py file, or any program.", show_default=False)],
    script_arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCRIPT ARGUMENTS]...", help="All that follows belongs to SCRIPT.", show_default=False),
    ] = None,
    num_processes: Annotated[
        int, typer.Option("-np", "--num-processes", help="Processes per GPU.", rich_help_panel=PROCESSES)
    ] = 1,
    num_gpus: Annotated[
        int | None,
        typer.Option(
            "-ng",
            "--num-gpus",
            help="GPUs to use, one group of processes on each. [default: 1]",
            rich_help_panel=PROCESSES,
        ),
    ] = None,
    gpu_offset: Annotated[
        int | None,
        typer.Option("-go", "--gpu-offset", help="Number of the first GPU. [default: 0]", rich_help_panel=PROCESSES),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="GPU,…",
            help="The GPUs: UUID, INDEX, or INDEX:MIG or MIG UUID.",
            rich_help_panel=PROCESSES,
        ),
    ] = None,
    cpu_bind: Annotated[
        CpuBindOption,
        typer.Option(
            "--cpu-bind",
            case_sensitive=False,
            help="CPUs of the processes: all near their GPU (numa), these divided among them (cores), or as they are.",
            rich_help_panel=PROCESSES,
        ),
    ] = CpuBindOption.AUTO,
    require_exclusive: Annotated[
        bool,
        typer.Option(
            "--require-exclusive",
            help="Start only on GPUs that nobody else uses; fail where they come.",
            rich_help_panel=PROCESSES,
        ),
    ] = False,
    python: Annotated[
        str, typer.Option(help="Interpreter of a .py SCRIPT.", show_default="this one", rich_help_panel=PROCESSES)
    ] = sys.executable,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End a process that runs longer than this.", rich_help_panel=PROCESSES),
    ] = None,
    log_level: Annotated[
        LogLevelOption,
        typer.Option(
            "-ll", "--log-level", case_sensitive=False, help="Log level of the script.", rich_help_panel=PROCESSES
        ),
    ] = LogLevelOption.INFO,
    warmup_batches: Annotated[
        int,
        typer.Option(
            "-w",
            "--warmup-batches",
            help="Batches excluded as warm-up, at the front and at the end of each loop.",
            rich_help_panel=MEANING,
        ),
    ] = DEFAULT_WARMUP_BATCHES,
    annotate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Functions of the script and its packages that become ranges.",
            rich_help_panel=MEANING,
        ),
    ] = None,
    annotate_torch: Annotated[
        int | None,
        typer.Option(
            metavar="DEPTH",
            help="PyTorch modules become stages; 0: the outermost only.",
            show_default=False,
            rich_help_panel=MEANING,
        ),
    ] = None,
    domain: Domain = None,
    batch_pattern: BatchPattern = None,
    reject_throttled: RejectThrottled = False,
    tracer: Annotated[
        TracerOption,
        typer.Option(
            case_sensitive=False,
            help="auto: nsys where a working one is found, else embedded.",
            rich_help_panel=TRACING,
        ),
    ] = TracerOption.AUTO,
    nsys: Annotated[
        Path | None, typer.Option(help="The nsys to use; otherwise it is looked for.", rich_help_panel=TRACING)
    ] = None,
    trace_os: Annotated[
        bool,
        typer.Option(
            "--trace-os", help="Record waits in the operating system too (nsys; costs time).", rich_help_panel=TRACING
        ),
    ] = False,
    barrier: Annotated[
        bool,
        typer.Option(
            "--barrier/--no-barrier",
            help="Hold each process at its first measured batch until all have come to theirs.",
            rich_help_panel=TOGETHER,
        ),
    ] = True,
    barrier_timeout: Annotated[
        float,
        typer.Option(
            "--barrier-timeout",
            metavar="SECONDS",
            help="How long the first process there waits for the last.",
            rich_help_panel=TOGETHER,
        ),
    ] = DEFAULT_BARRIER_TIMEOUT_S,
    telemetry: Annotated[
        bool,
        typer.Option(
            "--telemetry/--no-telemetry",
            help="Sample the GPUs and the host during the run.",
            rich_help_panel=MACHINE,
        ),
    ] = True,
    sample_interval_ms: Annotated[
        float,
        typer.Option("--sample-interval-ms", metavar="MS", help="How often they are sampled.", rich_help_panel=MACHINE),
    ] = DEFAULT_SAMPLE_INTERVAL_MS,
    measure_idle: Annotated[
        float,
        typer.Option(
            "--measure-idle",
            metavar="SECONDS",
            help="How long the idle GPUs are sampled before the first process.",
            rich_help_panel=MACHINE,
        ),
    ] = DEFAULT_MEASURE_IDLE_S,
    cool_down: Annotated[
        float | None,
        typer.Option(
            metavar="CELSIUS",
            help="Begin when the GPUs are at most that warm.",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = None,
    cool_down_limit: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Begin after that long in any case.", rich_help_panel=MACHINE),
    ] = DEFAULT_COOL_DOWN_LIMIT_S,
    maximize_clocks: Annotated[
        bool,
        typer.Option(
            "-m",
            "--maximize-clocks",
            help="GPU clocks at their maximum for the time of the run.",
            rich_help_panel=MACHINE,
        ),
    ] = False,
    clock_refusal: Annotated[
        ClockRefusal,
        typer.Option(
            "--clock-refusal",
            help="What to do where a clock setting is refused; stop: restore what was set.",
            rich_help_panel=MACHINE,
        ),
    ] = ClockRefusal.GO_ON,
    np_sweep: Annotated[
        str | None,
        typer.Option(
            "--np-sweep",
            metavar="N,…",
            help="A launch with each number of processes, and the scaling curve.",
            rich_help_panel=SERIES,
        ),
    ] = None,
    cold_start: Annotated[
        int | None,
        typer.Option(
            "--cold-start",
            metavar="N",
            help="Start-up of N fresh processes with a cold file cache and N with a warm one, one after another.",
            show_default=False,
            rich_help_panel=SERIES,
        ),
    ] = None,
    output_dir: Annotated[
        Path, typer.Option("-o", "--output-dir", help="Folder of the results.", rich_help_panel=OUTPUT)
    ] = Path(DEFAULT_OUTPUT_DIR),
    output_format: FormatOption = Format.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    plots: PlotsOption = False,
    show_output: Annotated[
        bool,
        typer.Option(
            "--show-output", help="Mirror the output of the processes to the terminal.", rich_help_panel=OUTPUT
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Run SCRIPT in N processes on M GPUs, traced, and say where the time went.

    Results go to stdout, progress and messages to stderr.

    Exit codes: 0 all well; 1 a process failed; 2 usage; 3 measured, but a check failed, or nothing could be measured.
    """
    if plots:
        check_plots(telemetry)
    options = LaunchOptions(
        script=script,
        script_arguments=tuple(script_arguments or ()),
        num_processes=num_processes,
        num_gpus=num_gpus,
        gpu_offset=gpu_offset,
        gpus=split_commas(gpus),
        warmup_batches=warmup_batches,
        output_dir=output_dir,
        log_level=log_level.value,
        tracer=tracer.value,
        nsys=nsys,
        python=python,
        trace_os=trace_os,
        timeout_s=timeout,
        domain=domain,
        batch_pattern=batch_pattern,
        reject_throttled=reject_throttled,
        annotate=annotate,
        annotate_torch=annotate_torch,
        barrier=barrier,
        barrier_timeout_s=barrier_timeout,
        telemetry=telemetry,
        sample_interval_ms=sample_interval_ms,
        measure_idle_s=measure_idle,
        plots=plots,
        require_exclusive=require_exclusive,
        cpu_bind=cpu_bind.value,
        cool_down_c=cool_down,
        cool_down_limit_s=cool_down_limit,
        maximize_clocks=maximize_clocks,
        clock_refusal=clock_refusal.value,
    )
    raise typer.Exit(
        run_launch(
            options,
            Output.of(output_format, quiet=quiet, verbose=verbose),
            show_output=show_output,
            dry_run=dry_run,
            np_sweep=parse_np_sweep(np_sweep),
            cold_start=cold_start,
            behind=options_behind_script(options.script_arguments, context),
        )
    )


def options_behind_script(arguments: Sequence[str], context: typer.Context) -> list[str]:
    """Arguments of the script that have the name of an option of ours; `--` in front of them says that it is meant."""
    own = {name for option in context.command.params for name in (*option.opts, *option.secondary_opts)} - {"--help"}
    told = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    names = [argument.partition("=")[0] for argument in told if argument.startswith("-")]
    return [name for name in names if (name.replace("_", "-") if name.startswith("--") else name) in own]


def _behind_finding(behind: Sequence[str], script: str) -> Finding:
    what = ", ".join(dict.fromkeys(behind))
    return Finding(
        "options-behind-script",
        Severity.NOTE,
        f"{what}: behind {script}, so passed to it; perfharness launch did not take them as its own",
        f"options of perfharness launch go in front of the script; `{script} -- …` if they are the script's",
    )


def parse_np_sweep(text: str | None) -> tuple[int, ...] | None:
    """`1,2,4` -> (1, 2, 4). Raises `UsageError` where that is no list of numbers."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--np-sweep {text}: must be different numbers of processes, as in 1,2,4,8")
    return tuple(int(part) for part in parts)


def run_launch(
    options: LaunchOptions,
    output: Output,
    *,
    show_output: bool,
    dry_run: bool,
    np_sweep: Sequence[int] | None = None,
    cold_start: int | None = None,
    behind: Sequence[str] = (),
) -> int:
    """Plan and run, all conflicts of all launches being found before the first; returns the exit code."""
    launches = [options]
    if cold_start is not None:
        from perfharness.runs.cold_start import cold_start_options

        if np_sweep is not None:
            raise UsageError(
                "--cold-start starts one process at a time, so --np-sweep cannot go with it; leave one of the two away"
            )
        launches = cold_start_options(options, cold_start)
    elif np_sweep is not None:
        from perfharness.runs.sweep import sweep_options

        launches = sweep_options(options, np_sweep)
    plans = plan_launches(launches)
    if behind:
        finding = _behind_finding(behind, options.script)
        plans = [replace(plan, findings=(*plan.findings, finding)) for plan in plans]
        print(f"perfharness: {safe(finding.message)}; {safe(finding.cure)}", file=sys.stderr)
    if dry_run:
        for plan in plans:
            print_plan(plan, output.results)
            output.findings(plan.findings)
        return EXIT_OK
    observe = partial(observed, output, show_output=show_output, series=len(plans) > 1)
    if cold_start is not None:
        return show_cold_start(options, plans, output, observe)
    if np_sweep is not None:
        return show_sweep(options, plans, output, observe)
    with observe(plans[0]) as observer:
        result = run_plan(plans[0], command_line(), observer)
    draw(plans[0], result, output)
    return show(result, output)


def command_line() -> list[str]:
    """What the user typed, for the manifest."""
    return ["perfharness", *sys.argv[1:]]


@contextmanager
def observed(output: Output, plan: LaunchPlan, *, show_output: bool, series: bool) -> Iterator[Observer]:
    """What goes on during a launch, on stderr; what loses its parent meanwhile belongs to the launch."""
    if series:
        output.message(f"\n{plan.options.output_dir}")
    output.message(headline(plan))
    with adopting_orphans(), LaunchView(output.messages, show_output=show_output) as view:
        yield view


def draw(plan: LaunchPlan, result: LaunchResult, output: Output) -> None:
    """The telemetry as pictures, where that was asked for."""
    if plan.options.plots and (result.folder / TELEMETRY_NAME).exists():
        from perfharness.render.charts.telemetry import draw_run

        for path in draw_run(result.folder):
            output.message(f"drawn: {path}")


def show_sweep(options: LaunchOptions, plans: Sequence[LaunchPlan], output: Output, observe: Observe) -> int:
    """Run a sweep and print its curve.

    Returns 0: all well; 3: some were measured, or none gave a throughput; 1: none was measured, or it was interrupted.
    """
    from perfharness.render.charts.drawing import draw as draw_pictures
    from perfharness.render.charts.scaling import SCALING_PAGE, scaling_picture
    from perfharness.render.series import print_scaling
    from perfharness.runs.sweep import run_sweep, summarize_sweep

    launches = []
    for plan, one in zip(plans, run_sweep(plans, command_line(), observe), strict=True):
        launches.append(one)
        if one.error is not None:
            say(output.errors, str(one.error))
        if one.result is not None:
            draw(plan, one.result, output)
            output.findings(one.result.summary.findings)
    swept = summarize_sweep(options, plans, launches, command_line())
    if output.is_json:
        output.json(swept.scaling.model_dump(mode="json"))
    else:
        print_scaling(output.results, swept.scaling)
    if swept.is_kept:
        output.message(f"{swept.folder} keeps the results of an earlier sweep: nothing was measured in this one")
    else:
        try:
            draw_pictures([scaling_picture(swept.scaling)], swept.folder, SCALING_PAGE)
        except PerfHarnessError as error:
            output.message(str(error))
        output.message(f"results: {swept.folder.absolute()}")
    rows = [one.row for one in launches]
    if any(one.interrupted for one in launches) or all(row.status != "ok" for row in rows):
        return EXIT_FAILED
    if any(one.error is not None for one in launches) or all(row.items_per_second is None for row in rows):
        return EXIT_CHECK_FAILED
    return exit_code(finding for one in launches if one.result is not None for finding in one.result.summary.findings)


def show_cold_start(options: LaunchOptions, plans: Sequence[LaunchPlan], output: Output, observe: Observe) -> int:
    """Run cold starts and print their table; returns the exit code."""
    from perfharness.render.series import print_cold_start
    from perfharness.runs.cold_start import run_cold_start, summarize_cold_start

    rows = [one.row for one in run_cold_start(plans, command_line(), observe)]
    measured = summarize_cold_start(options, plans, rows, command_line())
    if measured.is_kept:
        output.message(f"{measured.folder} keeps the results of an earlier launch: nothing was measured in this one")
    if output.is_json:
        output.json(measured.found.model_dump(mode="json"))
    else:
        print_cold_start(output.results, measured.found)
    output.message(f"results: {measured.folder.absolute()}")
    if not measured.is_complete or not any(row.status == "ok" and row.cache != "unknown" for row in rows):
        return EXIT_FAILED
    spreads = (*measured.found.cold.values(), *measured.found.warm.values())
    is_known = any(spread.median is not None for spread in spreads)
    return EXIT_OK if is_known and all(row.status != "failed" for row in rows) else EXIT_CHECK_FAILED


def show(result: LaunchResult, output: Output) -> int:
    """Print the results and what was found; returns the exit code."""
    from perfharness.report.terminal import print_result

    summary = result.summary
    if output.is_json:
        output.json(summary.mean)
    else:
        print_result(output.results, summary.mean, (each.entries for each in summary.results.values()))
    output.findings(result.findings)
    output.message(f"results: {result.folder}")
    if not result.all_processes_well or summary.not_written is not None:
        return EXIT_FAILED
    return exit_code(result.findings)


def check_plots(telemetry: bool) -> None:
    """Whether pictures can be drawn, before anything starts. Raises `UsageError`, `ToolNotFoundError`."""
    if not telemetry:
        raise UsageError("--plots draws the telemetry, which --no-telemetry switches off; leave one of the two away")
    require_charts()


def headline(plan: LaunchPlan) -> str:
    """What is about to run, in one or two lines."""
    count = len(plan.processes)
    where = ", ".join(f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''} {gpu.name or ''}".strip() for gpu in plan.gpus)
    tracer = f"{plan.tracer.kind} {plan.tracer.version or ''}".strip()
    return (
        f"{count} process{'es' if count != 1 else ''} of {plan.options.script} on {where or 'the CPU'}\n"
        f"tracer: {tracer}{f' ({plan.tracer.reason})' if plan.tracer.reason else ''}"
    )


def print_plan(plan: LaunchPlan, console: Console) -> None:
    """The plan, as a shell would take it."""
    run_dir = plan.options.output_dir.absolute()
    lines = [headline(plan), f"output: {run_dir}", f"start barrier: {_barrier_in_words(plan)}"]
    lines.append(f"CPUs: --cpu-bind {plan.options.cpu_bind}, {plan.placement_reason}")
    if plan.options.cool_down_c is not None:
        lines.append(f"begins at {plan.options.cool_down_c:g} °C, or after {plan.options.cool_down_limit_s:g} s")
    if plan.options.maximize_clocks:
        lines.append("GPU clocks: at their maximum while it runs, then as before")
    for spec in plan.processes:
        lines.append(f"\n{spec.folder}" + (f"  GPU {spec.gpu.uuid}" if spec.gpu else ""))
        lines += [f"  {name}={shlex.quote(value)}" for name, value in sorted(spec.environment_in(run_dir).items())]
        if spec.placement.cpus:
            lines.append(f"  CPUs {cpu_list(spec.placement.cpus)}: {spec.placement.how}")
        lines.append(f"  {shlex.join(planned_command(spec, plan.nsys, run_dir))}")
    for line in lines:
        say(console, line)


def _barrier_in_words(plan: LaunchPlan) -> str:
    if len(plan.processes) < 2:
        return "none, there is one process"
    if not plan.options.barrier:
        return "none (--no-barrier)"
    return f"before the first measured batch, for at most {plan.options.barrier_timeout_s:g} s"
