"""`perfharness bench sweep`: batch sizes until memory ends them, or the largest batch within a latency target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from perfharness.analysis.bench_names import CaseNames
from perfharness.cli.bench_options import (
    CaseTimeout,
    Charts,
    Device,
    Gpu,
    InputShape,
    OutputDir,
    Resume,
    RetryFailed,
    SuiteArgument,
    check_retry,
    shapes_of,
    words_of,
)
from perfharness.cli.bench_setup import (
    check_charts,
    exit_code,
    gpu_of,
    machine_of,
    resume_command,
    say,
    say_drawn,
    suite_of,
)
from perfharness.errors import UsageError
from perfharness.report.bench_words import first_line, in_significant_digits, status_line
from perfharness.report.console import Console

if TYPE_CHECKING:
    from perfharness.bench.suite.suite import Suite
    from perfharness.model.bench import BenchCase, CaseResult
    from perfharness.model.bench_search import SweepFile
    from perfharness_launcher.interrupts import Interrupts

DEFAULT_OUT = Path("sweep_out")


def sweep(
    suite: SuiteArgument = None,
    output_dir: OutputDir = DEFAULT_OUT,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="MODEL", help="A file, or module:function. Again for more.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", metavar="NAME[/MODE]", help="Again for more; NAME/all: all modes.")
    ] = None,
    precision: Annotated[str | None, typer.Option("--precision", metavar="P,…", help="[default: fp32]")] = None,
    smallest: Annotated[int, typer.Option("--smallest", min=1, help="Smallest batch size.")] = 1,
    largest: Annotated[int, typer.Option("--largest", min=1, help="Largest batch size.")] = 1024,
    latency_target: Annotated[
        float | None,
        typer.Option("--latency-target", metavar="MS", help="Search for the largest batch whose latency is within it."),
    ] = None,
    latency_percentile: Annotated[
        str, typer.Option("--latency-percentile", metavar="P", help="Of --latency-target: mean, p50, p95 or p99.")
    ] = "p99",
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="As 12GB; enforced, and it ends the sweep.")
    ] = None,
    shape: InputShape = None,
    device: Device = None,
    gpu: Gpu = None,
    warmup: Annotated[int | None, typer.Option("--warmup", min=0, help="[default: 50]")] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", min=1, help="[default: 1000]")] = None,
    passes: Annotated[
        str | None, typer.Option("--passes", metavar="PASS,…", help="[default: latency; or latency,telemetry]")
    ] = None,
    instances: Annotated[
        int | None, typer.Option("--instances", min=2, help="So many processes of each case at once, too.")
    ] = None,
    streams: Annotated[
        int | None,
        typer.Option("--streams", min=2, help="So many sessions in one process, each with a stream and a thread, too."),
    ] = None,
    timeout: CaseTimeout = None,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    charts: Charts = None,
) -> None:
    """Measure growing batch sizes, each in a process of its own, until memory, its limit or time ends them.

    With --latency-target: the largest batch size whose latency, with its whole 95 % interval, is within the target.

    Exit codes: 0 done; 1 a case failed, or the sweep was interrupted; 2 the command line is wrong; 3 nothing could be
    measured, or no batch size is known to meet the target.
    """
    from perfharness.model.bench_search import TargetFigure

    check_retry(retry_failed=retry_failed, resume=resume)
    if latency_percentile not in get_args(TargetFigure):
        raise UsageError(f"--latency-percentile {latency_percentile!r} is none of mean, p50, p95, p99")
    asked = words_of(passes) or _passes_of(suite)
    wanted = asked or (["latency"] if latency_target else ["latency", "telemetry"])
    at_once = {"instances": instances, "streams": streams}
    flags: dict[str, Any] = {
        "models": model,
        "backends": backend,
        "precisions": words_of(precision),
        "batch_sizes": [smallest],
        "shapes": shapes_of(shape or ()),
        "device": device,
        "latency.warmup": warmup,
        "latency.iterations": iterations,
        "measure.passes": [*wanted, *(name for name, count in at_once.items() if count and name not in wanted)],
        "measure.instances": instances,
        "measure.streams": streams,
        "measure.memory_limit": memory_limit,
        "run.gpu": gpu,
        "run.timeout_s": timeout,
    }
    made = suite_of(suite, flags, equality=False)
    drawn = check_charts(charts)
    found = _measured(
        made, output_dir, (smallest, largest), latency_target, latency_percentile,
        resume=resume, retry_failed=retry_failed,
    )  # fmt: skip
    raise typer.Exit(_tell(found, output_dir, charts=drawn))


def _passes_of(suite: Path | None) -> list[str] | None:
    """What a suite's file asks for."""
    from perfharness.bench.suite.suite import read_suite

    measure = {} if suite is None else read_suite(suite).get("measure", {})
    passes = measure.get("passes") if isinstance(measure, dict) else None
    return passes if isinstance(passes, list) else None


def _measured(
    suite: Suite,
    out: Path,
    sizes: tuple[int, int],
    target_ms: float | None,
    figure: str,
    *,
    resume: bool,
    retry_failed: bool,
) -> SweepFile:
    from perfharness.bench.search.run import SweepRun
    from perfharness.bench.suite.matrix import plan_cases
    from perfharness.bench.suite.store import locked, prepare
    from perfharness.bench.suite.suite import doubling_sizes
    from perfharness.model.bench_search import SWEEP_NAME, TargetFigure
    from perfharness_launcher.interrupts import noting_interrupts
    from perfharness_launcher.plan.gpus import find_gpus
    from perfharness_launcher.processes.orphans import adopting_orphans

    smallest, largest = sizes
    doubling_sizes(largest, smallest)
    messages = Console(stderr=True)
    gpus = find_gpus()
    gpu = gpu_of(suite, gpus.gpus, gpus.problem)
    cells = plan_cases(suite, gpu)
    cells = list({one.cell: one for one in reversed(cells)}.values())[::-1]  # whatever batch sizes a model names
    with locked(out), noting_interrupts() as interrupts, adopting_orphans():
        prepare(out, resume=resume, name=SWEEP_NAME)
        return SweepRun(
            suite=suite,
            cells=cells,
            out=out,
            smallest=smallest,
            largest=largest,
            machine=machine_of(gpus, gpu.uuid if gpu is not None else None),
            interrupts=interrupts,
            observer=SweepProgress(messages, interrupts, CaseNames.of(cell.case for cell in cells)),
            retry_failed=retry_failed,
            target_ms=target_ms,
            figure=cast("TargetFigure", figure),
            command=["perfharness", *sys.argv[1:]],
        ).run()


def _tell(found: SweepFile, out: Path, *, charts: bool | None) -> int:
    """Tables, charts and what to do next; the exit code."""
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.render.charts.bench import SWEEP_PAGE, sweep_pictures
    from perfharness.report.sweep import print_sweep

    messages = Console(stderr=True)
    print_sweep(Console(), found)
    if charts is not False:
        say_drawn(messages, lambda: sweep_pictures(found), out, SWEEP_PAGE)
    say(messages, f"results: {out.absolute()}")
    if not found.complete:
        say(messages, f"interrupted; {RESUME_HINT}: {resume_command()}")
    missed = any(cell.target is not None and cell.target.batch_size is None for cell in found.cells)
    too_slow = {"timeout"}  # which ends a sweep as memory does
    statuses = [case.status for case in found.cases if case.status not in too_slow]
    return exit_code(statuses, interrupted=not found.complete, check_failed=missed)


class SweepProgress:
    """Observer of a sweep: a line a case, in the words of its table."""

    def __init__(self, console: Console, interrupts: Interrupts, names: CaseNames) -> None:
        self._console, self._interrupts, self._names = console, interrupts, names
        self._told_interrupts = 0

    def look(self) -> None:
        """Tell that an interrupt came in."""
        if self._interrupts.count > self._told_interrupts:
            self._told_interrupts = self._interrupts.count
            self.say("ending this case; what is done is kept")

    def again(self, case: BenchCase, why: str) -> None:
        """Why it is not kept."""
        self.say(f"again: {self._names.case(case)}: {first_line(why)}")

    def done(self, result: CaseResult, *, is_kept: bool) -> None:
        """Its median, or what became of it."""
        median = None if result.latency is None else result.latency.median
        found = status_line(result) or f"{in_significant_digits(median)} ms"
        self.say(f"{self._names.case(result.case)}: {found}{' (kept of an earlier run)' if is_kept else ''}")

    def say(self, line: str) -> None:
        """As it is."""
        say(self._console, line)
