"""`perfharness bench start-up`: a model's start-up in fresh processes, with a cold and a warm file cache."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from perfharness.cli.bench_options import Device, Gpu, InputShape, OutputDir, shapes_of
from perfharness.cli.bench_setup import exit_code, gpu_of, say, suite_of
from perfharness.errors import UsageError
from perfharness.report.console import Console

DEFAULT_OUT = Path("startup_out")


def start_up(
    output_dir: OutputDir = DEFAULT_OUT,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="A file, or module:function.")] = "",
    backend: Annotated[str, typer.Option("--backend", metavar="NAME[/MODE]")] = "",
    precision: Annotated[str, typer.Option("--precision", metavar="P")] = "fp32",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 1,
    count: Annotated[int, typer.Option("--count", min=1, help="Cold ones, and as many warm ones, in turn.")] = 5,
    shape: InputShape = None,
    device: Device = None,
    gpu: Gpu = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Of a process.")] = None,
) -> None:
    """Import, load or build, allocate, first inference: in fresh processes, with a cold and a warm file cache.

    Exit codes: 0 done; 1 interrupted, or a process failed; 3 there could be no cold ones.
    """
    from perfharness.bench.suite.matrix import plan_cases
    from perfharness.bench.suite.startup import FIGURES, measure_startup
    from perfharness.bench.suite.store import locked
    from perfharness.render.series import print_cold_start
    from perfharness.runs.cold_start import write_cold_start
    from perfharness_launcher.interrupts import noting_interrupts
    from perfharness_launcher.plan.gpus import find_gpus
    from perfharness_launcher.processes.orphans import adopting_orphans

    if not model or not backend or backend.endswith("/all"):
        raise UsageError("name one --model and one --backend, as --backend torch/eager")
    flags: dict[str, Any] = {
        "models": [model], "backends": [backend], "precisions": [precision], "batch_sizes": [batch_size],
        "shapes": shapes_of(shape or ()), "device": device, "run.gpu": gpu, "run.timeout_s": timeout,
    }  # fmt: skip
    suite = suite_of(None, flags, equality=False)
    gpus = find_gpus()
    (planned,) = plan_cases(suite, gpu_of(suite, gpus.gpus, gpus.problem))
    if planned.refusal is not None:
        raise UsageError(planned.refusal)
    messages = Console(stderr=True)
    with locked(output_dir), noting_interrupts() as interrupts, adopting_orphans():
        if any(output_dir.iterdir()):
            raise UsageError(f"{output_dir} is not empty; name another folder with -o")
        found = measure_startup(
            planned,
            output_dir.absolute(),
            count,
            timeout_s=suite.run.timeout_s,
            interrupts=interrupts,
            command=["perfharness", *sys.argv[1:]],
            done=lambda row: say(messages, f"{row.folder}: {row.status}"),
        )
        interrupted = bool(interrupts)
    write_cold_start(found, output_dir)
    print_cold_start(Console(), found, FIGURES)
    say(messages, f"results: {output_dir.absolute()}")
    impossible = any(row.status == "not_run" for row in found.rows)
    statuses = [row.status for row in found.rows if row.status == "failed" or row.cache != "unknown"]
    raise typer.Exit(exit_code(statuses, interrupted=interrupted, check_failed=impossible))
