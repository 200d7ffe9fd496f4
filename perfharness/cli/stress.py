"""`perfharness stress`: put a target under load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from perfharness.backends.models import shapes_of
from perfharness.cli.support.help import GroupedCommand, HelpAll
from perfharness.cli.support.limits import are_kept, limits_of
from perfharness.cli.support.live import LaunchView
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK, command_line, exit_code
from perfharness.cli.support.output import Format, FormatOption, Output, RareQuietOption, RareVerboseOption
from perfharness.cli.support.settings import given, with_settings
from perfharness.errors import UsageError
from perfharness.load.profile import Profile, profile_of
from perfharness.load.progress import LoadProgress, LoadStatus
from perfharness.load.replicas.plan import parse_replicas, parse_sharing, plan_replicas
from perfharness.load.replicas.result import Sharing
from perfharness.load.replicas.run import ReplicaRun
from perfharness.load.stress import LAUNCH_SETTINGS, StressResult, model_spec, plan_stress, run_stress
from perfharness.load.targets.backend import ModelSpec
from perfharness.load.targets.http.settings import http_settings, is_url
from perfharness.model.load import WINDOWS_NAME
from perfharness.render.terminal.console import Console, say
from perfharness.render.terminal.load import print_load, saturation_text, status_text
from perfharness.render.terminal.plan import headline
from perfharness.render.terminal.replicas import print_replicas
from perfharness.runs.comparison.limits import Limit
from perfharness.runs.series.repeat import repeat_request
from perfharness.runs.series.repeat_file import DEFAULT_COUNT, RepeatRequest
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.processes.orphans import adopting_orphans
from perfharness_launcher.processes.spawn import RunningProcess
from perfharness_launcher.processes.supervise import Observer

LINE_S, MOST_LINES = 5.0, 20
"""How often a line says how the load goes, where there is no terminal."""

LOAD = "Load"
MODEL_PANEL = "Model"
LIMITS = "Limits"
REPLICAS = "Replicas"
HTTP = "HTTP"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("stress", cls=GroupedCommand, context_settings=CONTEXT, epilog=EPILOG)(stress_verb)


EPILOG = "`perfharness stress --help-all` shows all options. docs/guides/load.md: phases, mixes, files of arrivals."


@with_settings(LaunchOptions, only=LAUNCH_SETTINGS, rare=("num_gpus", "gpus", "maximize_clocks", "annotate", "tracer"))
def stress_verb(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="module:function, file.py:function, a script, a model, or a URL.", show_default=False
        ),
    ],
    script_arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SCRIPT ARGUMENTS]...", help="Of a script.", show_default=False),
    ] = None,
    *,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE.toml",
            help="The load, in a table [load]; of a URL also [target].",
            rich_help_panel=LOAD,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="COMMAND",
            help="Of a URL: launch this server, traced, and load it.",
            rich_help_panel=HTTP,
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="TEXT",
            help="Of a URL: a right answer, as status=200, length>=10, contains=ok, json:result.value=42.",
            hidden=True,
            rich_help_panel=HTTP,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="Requests a second (open loop); without it a closed loop.", rich_help_panel=LOAD, min=0
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            metavar="constant|poisson|bursty",
            help="When requests are due. [default: constant]",
            rich_help_panel=LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            help="Requests in service at a time, of each process. [default: 1]",
            rich_help_panel=LOAD,
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--duration", metavar="TIME", help="As 30s, 10m. [default: 10s]", rich_help_panel=LOAD),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            "--warm-up", metavar="TIME", help="The same load before, which does not count.", rich_help_panel=LOAD
        ),
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(
            "--think",
            metavar="TIME",
            help="Pause of a closed loop after each answer.",
            rich_help_panel=LOAD,
            hidden=True,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", help="Items of a request. [default: 1]", rich_help_panel=LOAD, min=1, hidden=True),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="What each request holds: .npz, .npy, .json, .txt, .jsonl.",
            rich_help_panel=LOAD,
            hidden=True,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="NAME[/MODE]", help="TARGET is a model, run by this.", rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="auto|cpu|cuda",
            help="Of a model; auto: the GPU where there is one.",
            rich_help_panel=MODEL_PANEL,
            hidden=True,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", metavar="fp32|fp16|…", help="Of a model.", rich_help_panel=MODEL_PANEL, hidden=True
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=DIMxDIM…",
            help="Of an input that leaves dimensions open.",
            rich_help_panel=MODEL_PANEL,
            hidden=True,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of random arrivals. [default: 0]", rich_help_panel=LOAD, hidden=True)
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="[pN=]TIME",
            help="What is in time, as 50ms, p95=50ms, p99<=1s,errors<=1%.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    find_knee: Annotated[
        bool,
        typer.Option(
            "--find-knee",
            help="Search the highest rate that meets the objective, --duration (and more) each.",
            rich_help_panel=LIMITS,
        ),
    ] = False,
    knee_precision: Annotated[
        float | None,
        typer.Option(
            "--knee-precision",
            metavar="SHARE",
            help="How close to it the search comes. [default: 0.1]",
            rich_help_panel=LIMITS,
            hidden=True,
        ),
    ] = None,
    knee_budget: Annotated[
        str | None,
        typer.Option(
            "--knee-budget",
            metavar="TIME",
            help="How long the search may take. [default: 80 times --duration]",
            rich_help_panel=LIMITS,
            hidden=True,
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 3 where it is met: 'latency.p99 > 20ms', 'error_rate > 0.01'; may be given again.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    request_timeout: Annotated[
        str | None,
        typer.Option(
            "--request-timeout",
            metavar="TIME",
            help="An answer after that is an error.",
            hidden=True,
            rich_help_panel=LIMITS,
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="How long late answers are awaited. [default: 10s]",
            rich_help_panel=LIMITS,
            hidden=True,
        ),
    ] = None,
    max_error_rate: Annotated[
        float | None,
        typer.Option(
            "--max-error-rate",
            metavar="SHARE",
            help="Errors, as a part of all answers: more fail the run, and end it when it goes on for 10 s.",
            hidden=True,
            rich_help_panel=LIMITS,
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="N,…",
            help="The same load on each number of processes that share a GPU, in turns, and which number to take.",
            rich_help_panel=REPLICAS,
        ),
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing",
            metavar="plain,mps,mig",
            help="How replicas share it: in turns, through MPS, on MIG instances. [default: plain]",
            rich_help_panel=REPLICAS,
            hidden=True,
        ),
    ] = None,
    start_mps: Annotated[
        bool,
        typer.Option(
            "--start-mps",
            help="Start an MPS daemon for the launches that need one, and end it.",
            rich_help_panel=REPLICAS,
            hidden=True,
        ),
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat",
            metavar="N",
            help=f"Launches of each case of --replicas. [default: {DEFAULT_COUNT}]",
            rich_help_panel=REPLICAS,
            hidden=True,
        ),
    ] = None,
    output_format: FormatOption = Format.TEXT,
    quiet: RareQuietOption = False,
    verbose: RareVerboseOption = False,
    help_all: HelpAll = False,
    **settings: Any,
) -> None:
    """Put TARGET under load, traced: each request is a batch of the trace.

    Latency counts from the moment at which a request is due. Results go to stdout, progress and messages to stderr.

    Exit codes: 0 all well; 1 a process failed; 2 usage; 3 measured, but a check failed, or errors ended it early.
    """
    del help_all
    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    load = profile_of(
        {
            "rate": rate, "arrivals": arrivals, "concurrency": concurrency, "duration_s": duration,
            "warmup_s": warmup, "think_s": think, "seed": seed, "objective": objective,
            "request_timeout_s": request_timeout, "grace_s": grace, "max_error_rate": max_error_rate,
            "items": batch_size, "input": input_file,
            "knee": knee_of(find_knee=find_knee, precision=knee_precision, budget_s=knee_budget),
        },
        profile,
    )  # fmt: skip
    http = http_settings(target, profile, {"expect": tuple(expect) if expect else None}) if is_url(target) else None
    if http is None and expect:
        raise UsageError("--expect is of targets that are URLs; a function returns an Answer with an error")
    of_model = {"device": device, "precision": precision, "shapes": shapes_of(shape) if shape else None}
    model = model_spec(backend, {name: value for name, value in of_model.items() if value is not None})
    limits = limits_of(fail_if or ())
    _check_replicas(replicas, sharing=sharing, start_mps=start_mps, repeat=repeat, fail_if=bool(limits))
    if replicas is not None:
        asked = ReplicasAsked(
            target, load, given(context, settings), model, script_arguments or (), parse_replicas(replicas),
            parse_sharing(sharing or "plain"), start_mps, repeat_request(repeat), start,
        )  # fmt: skip
        raise typer.Exit(show_replicas(asked, output))
    plan = plan_stress(
        target, load, given(context, settings), model, start=start, http=http, script_arguments=script_arguments or ()
    )
    output.message(headline(plan.launch))
    view = LoadView(output.messages, load)
    with adopting_orphans(), view:
        result = run_stress(plan, command_line(), view)
    raise typer.Exit(show_stress(result, output, limits))


def _check_replicas(
    replicas: str | None, *, sharing: str | None, start_mps: bool, repeat: int | None, fail_if: bool
) -> None:
    """Raises `UsageError`."""
    if replicas is not None and fail_if:
        raise UsageError("--fail-if judges one load test, and --replicas makes several; leave one of the two away")
    given_alone = [
        name
        for name, is_given in (
            ("--sharing", sharing is not None),
            ("--start-mps", start_mps),
            ("--repeat", repeat is not None),
        )
        if is_given and replicas is None
    ]
    if given_alone:
        raise UsageError(f"{given_alone[0]} is of a comparison of replicas; give --replicas, as 1,2,4")
    if start_mps and "mps" not in (sharing or ""):
        raise UsageError("--start-mps needs --sharing mps")


def knee_of(*, find_knee: bool, **given: float | str | None) -> dict[str, float | str] | None:
    """The settings of the search. Raises `UsageError`."""
    settings = {name: value for name, value in given.items() if value is not None}
    if settings and not find_knee:
        raise UsageError(f"--knee-{min(settings).removesuffix('_s')} needs --find-knee")
    return settings if find_knee else None


class LoadView(LaunchView):
    """The launch's view, and the load's last second: on a terminal below the table, elsewhere a line now and then."""

    def __init__(self, console: Console, profile: Profile) -> None:
        super().__init__(console)
        self._profile = profile
        self._progress: LoadProgress | None = None
        self._next_line = 0.0
        self._saturated: set[str] = set()

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """Follow their files."""
        super().started(processes)
        self._progress = LoadProgress(self._profile, [process.folder / WINDOWS_NAME for process in processes])

    def details(self) -> list[str]:
        """The line of the load."""
        status = self._status()
        return [] if status is None else [status_text(status)]

    def _status(self) -> LoadStatus | None:
        """What is known now. A phase in which the target does not keep up is said once, in a line that stays."""
        status = None if self._progress is None else self._progress.poll()
        if status is not None and status.phase not in self._saturated and self._profile.knee is None:
            text = saturation_text(status)
            if text is not None:
                self._saturated.add(status.phase)
                self._add_line(text)
        return status

    def _draw(self, ending: bool) -> None:
        if not (self._console.is_terminal or self._stage or ending):
            status = self._status()
            if status is not None and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + max(LINE_S, self._profile.duration_s / MOST_LINES)
                self._add_line(status_text(status))
        super()._draw(ending)


@dataclass(frozen=True)
class ReplicasAsked:
    """A comparison of replicas, as the command line has it."""

    target: str
    profile: Profile
    settings: dict[str, Any]
    model: ModelSpec | None
    script_arguments: Sequence[str]
    numbers: Sequence[int]
    sharings: Sequence[Sharing]
    starts_mps: bool
    request: RepeatRequest
    start: str | None


def show_replicas(asked: ReplicasAsked, output: Output) -> int:
    """Put the same load on each number of replicas, and print which one to take.

    Returns 0: all well; 3: a launch failed, or a check; 1: nothing was measured, or it was interrupted.
    """
    if asked.start is not None:
        raise UsageError("--start starts one server, and --replicas processes of TARGET; leave one of the two away")
    interrupted = False
    with TemporaryDirectory(prefix="perfharness-mps-") as folder:
        cases = plan_replicas(
            asked.target, asked.profile, asked.settings, asked.model, numbers=asked.numbers, sharings=asked.sharings,
            starts_mps=asked.starts_mps, script_arguments=asked.script_arguments, folder=Path(folder),
        )  # fmt: skip
        out = cases[0].plan.launch.options.output_dir
        run = ReplicaRun(cases, asked.profile, out, asked.request, command_line())

        @contextmanager
        def watching(plan: LaunchPlan) -> Iterator[Observer]:
            output.message(f"\n{plan.options.output_dir}")
            with adopting_orphans(), LoadView(output.messages, run.case_of(plan).plan.spec.profile) as view:
                yield view

        for one in run.launches(watching):
            interrupted = interrupted or one.interrupted
            if one.error is not None:
                say(output.errors, str(one.error))
    found = run.result
    run.write()
    if output.is_json:
        output.json(found.model_dump(mode="json"))
    else:
        print_replicas(output.results, found)
    findings = [record.to_finding() for record in found.findings]
    output.findings(findings)
    output.message(f"results: {out.absolute()}")
    if interrupted or found.best is None:
        return EXIT_FAILED
    return EXIT_CHECK_FAILED if any(case.left_out for case in found.cases) else exit_code(findings)


def show_stress(result: StressResult, output: Output, limits: Sequence[Limit] = ()) -> int:
    """Print what was measured, then what was found; returns the exit code."""
    if output.is_json:
        output.json(result.load.model_dump(mode="json"))
    else:
        print_load(output.results, result.load)
    output.findings(result.findings)
    output.message(f"results: {result.launch.folder}")
    if result.load.status == "stopped-by-errors":
        return EXIT_CHECK_FAILED
    if result.load.status != "ok" or not result.launch.all_processes_well:
        return EXIT_FAILED
    if not are_kept(result.launch.folder, limits, output):
        return EXIT_CHECK_FAILED
    return exit_code(result.findings) or EXIT_OK
