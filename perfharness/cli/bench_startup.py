"""`perfharness bench start-up`: a model's start-up in fresh processes, with a cold and a warm file cache."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from perfharness.cli.bench_options import Device, Gpu, OutputDir
from perfharness.cli.bench_setup import gpu_of, say, suite_of
from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK
from perfharness.errors import UsageError

DEFAULT_OUT = Path("startup_out")


def start_up(
    output_dir: OutputDir = DEFAULT_OUT,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="A file, or module:function.")] = "",
    backend: Annotated[str, typer.Option("--backend", metavar="NAME[/MODE]")] = "",
    precision: Annotated[str, typer.Option("--precision", metavar="P")] = "fp32",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 1,
    count: Annotated[int, typer.Option("--count", min=1, help="Cold ones, and as many warm ones, in turn.")] = 5,
    device: Device = None,
    gpu: Gpu = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Of a process.")] = None,
) -> None:
    """Import, load or build, allocate, first inference: in fresh processes, with a cold and a warm file cache.

    How the cache is emptied, and what stays in it: docs/startup.md. Exit codes: 0 done; 1 interrupted, or nothing was
    measured; 3 some failed, or there could be no cold ones.
    """
    from perfharness.bench.matrix import plan_cases
    from perfharness.bench.startup_run import FIGURES, measure_startup
    from perfharness.report.cold_start import print_cold_start, write_cold_start
    from perfharness_launcher.gpus import find_gpus
    from perfharness_launcher.interrupts import noting_interrupts
    from perfharness_launcher.orphans import adopting_orphans

    if not model or not backend or backend.endswith("/all"):
        raise UsageError("name one --model and one --backend, as --backend torch/eager")
    flags: dict[str, Any] = {
        "models": [model], "backends": [backend], "precisions": [precision], "batch_sizes": [batch_size],
        "device": device, "run.gpu": gpu, "run.timeout_s": timeout,
    }  # fmt: skip
    suite = suite_of(None, flags, equality=False)
    gpus = find_gpus()
    (planned,) = plan_cases(suite, gpu_of(suite, gpus.gpus, gpus.problem))
    if planned.refusal is not None:
        raise UsageError(planned.refusal)
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UsageError(f"{output_dir} is not empty; name another folder with -o")
    output_dir.mkdir(parents=True, exist_ok=True)
    console = Console()
    with noting_interrupts() as interrupts, adopting_orphans():
        found = measure_startup(
            planned,
            output_dir.absolute(),
            count,
            timeout_s=suite.run.timeout_s,
            interrupts=interrupts,
            command=["perfharness", *sys.argv[1:]],
            done=lambda row: say(console, f"{row.folder}: {row.status}"),
        )
        interrupted = bool(interrupts)
    write_cold_start(found, output_dir)
    print_cold_start(console, found, FIGURES)
    say(console, f"results: {output_dir.absolute()}")
    if interrupted or not any(row.status == "ok" and row.cache != "unknown" for row in found.rows):
        raise typer.Exit(EXIT_FAILED)
    raise typer.Exit(EXIT_OK if all(row.status == "ok" for row in found.rows) else EXIT_CHECK_FAILED)
