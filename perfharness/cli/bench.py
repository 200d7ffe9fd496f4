"""`perfharness bench`: a suite of models, backends, precisions and batch sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfharness.cli.bench_options import (
    Baseline,
    CaseTimeout,
    Charts,
    Device,
    Gpu,
    InputShape,
    MaxEnergy,
    MaxLatency,
    MaxLoss,
    Metric,
    MetricDirection,
    OutputDir,
    Percentile,
    Resume,
    RetryFailed,
    SuiteArgument,
    batch_sizes_of,
    check_retry,
    check_utf8,
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
from perfharness.cli.bench_show import merge, show
from perfharness.cli.bench_startup import start_up
from perfharness.cli.bench_sweep import sweep
from perfharness.cli.help import FullSummaries
from perfharness.cli.options import CONTEXT, EXIT_OK
from perfharness.report.console import Console

if TYPE_CHECKING:
    from perfharness.bench.suite.suite import Suite
    from perfharness.model.bench_suite import BenchSuiteResult

DEFAULT_OUT = Path("bench_out")
RUN = "run"


class DefaultsToRun(FullSummaries):
    """`bench suite.toml` means `bench run suite.toml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the name of the verb in where none is given."""
        check_utf8(args)
        if not args or args[0] not in self.commands:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb = typer.Typer(
        cls=DefaultsToRun,
        help="Models over backends, precisions and batch sizes: speed, memory, energy, accuracy.",
        context_settings=CONTEXT,
    )
    verb.command(RUN, context_settings=CONTEXT)(run)
    verb.command("sweep", context_settings=CONTEXT)(sweep)
    verb.command("start-up", context_settings=CONTEXT)(start_up)
    verb.command("show", context_settings=CONTEXT)(show)
    verb.command("merge", context_settings=CONTEXT)(merge)
    app.add_typer(verb, name="bench")


def run(
    suite: SuiteArgument = None,
    output_dir: OutputDir = DEFAULT_OUT,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="MODEL", help="A file, a SavedModel folder, or module:function. Again for more."
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="NAME[/MODE]", help="Again for more; NAME/all for all its modes."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="P,…", help="fp32, tf32, fp16, bf16, int8. [default: fp32]")
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option("--batch-size", metavar="N,…", help="As 1,8,32, or 1..64 for 1, 2, 4, ... 64. [default: 1]"),
    ] = None,
    shape: InputShape = None,
    device: Device = None,
    gpu: Gpu = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", min=0, help="Iterations before the timed ones. [default: 50]")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Timed iterations of a case. [default: 1000]")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="No case may take more, as 12GB; enforced, and the limit of what is recommended.",
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            metavar="PASS,…",
            help="latency, telemetry, layers, instances, streams, stages. [default: latency,telemetry]",
        ),
    ] = None,
    equality: Annotated[
        bool | None,
        typer.Option(
            "--equality/--no-equality", help="Compare all outputs before any speed is measured.", show_default=False
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
        bool, typer.Option("--dry-run", help="Check everything, print the cases in their order, start nothing.")
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

    A key that SUITE.toml cannot have is answered with those that it can. Flags go over what the suite says.

    `perfharness bench show DIR` prints the results again, under other constraints; `perfharness bench merge A B -o DIR`
    puts several machines' results side by side; `perfharness bench sweep` measures batch sizes until memory ends, or
    finds the largest within a latency target; `perfharness bench start-up` times cold and warm starts.

    Exit codes: 0 every case was measured or cannot run here; 1 a case failed, or the suite was interrupted; 2 the suite
    is wrong; 3 none could be measured, some gave wrong answers, or none meets the constraints.
    """
    flags: dict[str, Any] = {
        "models": model,
        "backends": backend,
        "precisions": words_of(precision),
        "batch_sizes": batch_sizes_of(batch_size),
        "shapes": shapes_of(shape or ()),
        "device": device,
        "baseline": baseline,
        "latency.warmup": warmup,
        "latency.iterations": iterations,
        "measure.passes": words_of(passes),
        "measure.memory_limit": memory_limit,
        "run.gpu": gpu,
        "run.timeout_s": timeout,
        "run.cool_down_c": cool_down,
        "run.cool_down_limit_s": cool_down_limit,
        "run.seed": seed,
        "run.shuffle": shuffle,
        "constraints.max_latency_ms": max_latency_ms,
        "constraints.latency_percentile": latency_percentile,
        "constraints.memory_limit": memory_limit,
        "constraints.max_accuracy_loss": max_accuracy_loss,
        "constraints.accuracy_metric": accuracy_metric,
        "constraints.accuracy_direction": accuracy_direction,
        "constraints.max_energy_per_item_j": max_energy_per_item_j,
    }
    made = suite_of(suite, flags, equality)
    check_retry(retry_failed=retry_failed, resume=resume)
    raise typer.Exit(
        _run(made, output_dir, resume=resume, retry_failed=retry_failed, dry_run=dry_run, charts=check_charts(charts))
    )


def _run(suite: Suite, out: Path, *, resume: bool, retry_failed: bool, dry_run: bool, charts: bool | None) -> int:
    from perfharness.bench.suite.case_run import RESUME_HINT
    from perfharness.bench.suite.matrix import default_baseline, plan_cases, shuffled
    from perfharness.bench.suite.run import SuiteRun
    from perfharness.bench.suite.store import locked, prepare
    from perfharness.cli.bench_progress import SuiteProgress
    from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
    from perfharness.report.bench_table import print_suite
    from perfharness_launcher.interrupts import noting_interrupts
    from perfharness_launcher.plan.gpus import find_gpus
    from perfharness_launcher.processes.orphans import adopting_orphans

    console, messages = Console(), Console(stderr=True)
    gpus = find_gpus()
    gpu = gpu_of(suite, gpus.gpus, gpus.problem)
    planned = plan_cases(suite, gpu)
    baseline = suite.baseline or default_baseline(suite, gpu)
    if dry_run:
        for case in shuffled(planned, suite.run.seed) if suite.run.shuffle else planned:
            say(console, f"{case.case_id}: {case.refusal}" if case.refusal else case.case_id)
        return EXIT_OK
    with (
        locked(out),
        noting_interrupts() as interrupts,
        adopting_orphans(),
        SuiteProgress(messages, interrupts) as progress,
    ):
        prepare(out, resume=resume)
        result = SuiteRun(
            suite,
            planned,
            out,
            baseline,
            machine_of(gpus, gpu.uuid if gpu is not None else None),
            interrupts,
            progress,
            retry_failed=retry_failed,
            command=["perfharness", *sys.argv[1:]],
        ).run()
    print_suite(console, result)
    if charts is not False:
        say_drawn(messages, lambda: bench_pictures(result), out, BENCH_PAGE)
    say(messages, f"results: {out.absolute()}")
    if not result.complete:
        left = sum(case.status == "not-run" for case in result.cases)
        say(messages, f"interrupted with {left} of {len(result.cases)} cases left; {RESUME_HINT}: {resume_command()}")
    return exit_code_of(result)


def exit_code_of(result: BenchSuiteResult) -> int:
    """What cannot run here is no failure; wrong answers, and constraints that nothing meets, are failed checks."""
    from perfharness.analysis.bench_figures import gives_wrong_answers
    from perfharness.analysis.recommendation import is_any_unmet

    bad = any(gives_wrong_answers(case) for case in result.cases) or is_any_unmet(result)
    return exit_code([case.status for case in result.cases], interrupted=not result.complete, check_failed=bad)
