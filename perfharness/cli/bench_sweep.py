"""`perfharness bench sweep`: batch sizes until memory ends them, or the largest batch within a latency target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from perfharness.cli.bench_options import CaseTimeout, Device, Gpu, OutputDir, SuiteArgument, words_of
from perfharness.cli.bench_setup import gpu_of, say, suite_of
from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK
from perfharness.errors import UsageError

if TYPE_CHECKING:
    from perfharness.model.bench import BenchCase, CaseResult, Estimate
    from perfharness.model.bench_search import CellSweep, SweepFile

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
) -> None:
    """Measure growing batch sizes, each in a process of its own, until memory, its limit or time ends them.

    With --latency-target: the largest batch size whose latency, with its whole 95 % interval, is within the target.

    Exit codes: 0 done; 1 interrupted, or nothing was measured; 2 the command line is wrong; 3 a target that no batch
    size is known to meet.
    """
    from perfharness.model.bench_search import TargetFigure

    if latency_percentile not in get_args(TargetFigure):
        raise UsageError(f"--latency-percentile {latency_percentile!r} is none of mean, p50, p95, p99")
    wanted = words_of(passes) or (["latency"] if latency_target else ["latency", "telemetry"])
    at_once = {"instances": instances, "streams": streams}
    flags: dict[str, Any] = {
        "models": model,
        "backends": backend,
        "precisions": words_of(precision),
        "batch_sizes": [smallest],
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
    raise typer.Exit(_run(made, output_dir, smallest, largest, latency_target, latency_percentile))


def _run(suite: Any, out: Path, smallest: int, largest: int, target_ms: float | None, figure: str) -> int:
    from perfharness.bench.matrix import plan_cases
    from perfharness.bench.store import prepare
    from perfharness.bench.sweep import doubling_sizes
    from perfharness.bench.sweep_run import SweepRun
    from perfharness.model.bench_search import TargetFigure
    from perfharness_launcher.gpus import find_gpus
    from perfharness_launcher.interrupts import noting_interrupts
    from perfharness_launcher.orphans import adopting_orphans

    doubling_sizes(largest, smallest)
    console = Console()
    gpus = find_gpus()
    cells = plan_cases(suite, gpu_of(suite, gpus.gpus, gpus.problem))
    cells = list({_key(one.case): one for one in reversed(cells)}.values())[::-1]  # whatever batch sizes a model names
    prepare(out, resume=False)
    with noting_interrupts() as interrupts, adopting_orphans():
        found = SweepRun(
            cells=cells,
            out=out,
            smallest=smallest,
            largest=largest,
            timeout_s=suite.run.timeout_s,
            interrupts=interrupts,
            target_ms=target_ms,
            figure=cast("TargetFigure", figure),
            command=["perfharness", *sys.argv[1:]],
            done=lambda result: say(console, _line(result)),
        ).run()
    print_sweep(console, found)
    say(console, f"results: {out.absolute()}")
    if not found.complete or not any(case.status == "ok" for case in found.cases):
        return EXIT_FAILED
    missed = any(cell.target is not None and cell.target.batch_size is None for cell in found.cells)
    return EXIT_CHECK_FAILED if missed else EXIT_OK


def print_sweep(console: Console, found: SweepFile) -> None:
    """Every case in a row, in order of cell and batch size, and under each cell what ended it."""
    from perfharness.analysis.bench_names import short_backend
    from perfharness.report.bench_table import at_once_lines

    for cell in found.cells:
        title = f"{cell.model}, {short_backend(cell.backend)} {cell.mode} {cell.precision}"
        table = Table(title=title, title_justify="left", box=None)
        for name in ("batch", "p50 ms", "p95 ms", "p99 ms", "items/s", "GPU memory", "J/item", ""):
            table.add_column(name, justify="left" if not name else "right")
        key = (cell.model, cell.backend, cell.mode, cell.precision)
        mine = [
            one for one in found.cases if (one.case.model, one.case.backend, one.case.mode, one.case.precision) == key
        ]
        mine.sort(key=lambda one: one.case.batch_size)
        for case in mine:
            table.add_row(*_cells(case))
        console.print(table)
        for case in mine:
            for line in at_once_lines(case):
                say(console, f"batch {case.case.batch_size}: {line}")
        if cell.reason:
            say(console, cell.reason)


def _key(cell: BenchCase | CellSweep) -> tuple[str, ...]:
    return cell.model, cell.backend, cell.mode, cell.precision, cell.device


def _cells(case: CaseResult) -> list[str]:
    latency, memory = case.latency, case.memory.device_peak_bytes
    return [
        str(case.case.batch_size),
        _with_interval(latency.median if latency else None),
        _with_interval(latency.p95 if latency else None),
        _with_interval(latency.p99 if latency else None),
        _with_interval(case.items_per_second),
        "-" if memory is None else f"{memory / 1e9:.3f} GB",
        _with_interval(case.energy_per_item_j),
        "" if case.status == "ok" else case.status,
    ]


def _with_interval(figure: Estimate | None) -> str:
    if figure is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.4g}"
    return f"{figure.value:.4g} ±{(figure.high - figure.low) / 2:.1g}"


def _line(result: CaseResult) -> str:
    from perfharness.analysis.bench_names import short_backend

    case = result.case
    name = f"{short_backend(case.backend)} {case.mode} {case.precision}, batch {case.batch_size}"
    if result.latency is None:
        return f"{name}: {result.status}: {result.reason}"
    return f"{name}: {result.latency.median.value:.4g} ms"
