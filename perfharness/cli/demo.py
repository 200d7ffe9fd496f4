"""`perfharness demo`: launch an example pipeline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import typer
from pydantic import BaseModel

from perfharness.cli.launch import show_launch
from perfharness.cli.support.options import EXIT_OK
from perfharness.cli.support.output import Output
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.model.result import BENCHMARK_MEAN_NAME
from perfharness.model.settings import option
from perfharness.render.numbers import milliseconds
from perfharness.runs.launch import plan_launches
from perfharness.runs.run import open_run
from perfharness.runs.stage_lines import stage_lines
from perfharness_launcher.options import launch_options

PIPELINE_NAME = "demo_pipeline.py"
DEFAULT_FOLDER = Path("perfharness-demo")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


class DemoSettings(BaseModel):
    """Options of `demo`."""

    output_dir: Path = option("Folder of the results.", "", "DIR", flags="-o --output-dir", default=DEFAULT_FOLDER)
    fixed: bool = option("Run the pipeline without its bottleneck.", default=False)


@with_settings()
def demo(*, asked: DemoSettings) -> None:
    """Find the bottleneck of a small example pipeline.

    Exit codes: those of `perfharness launch`.
    """
    output, script = Output(), copy_pipeline(asked.output_dir)
    arguments = ["--fixed"] if asked.fixed else []
    code = launch_pipeline(script, arguments, asked.output_dir / ("fixed" if asked.fixed else "faulty"), output)
    if code == EXIT_OK:
        print_next(asked.output_dir, output)
    raise typer.Exit(code)


def copy_pipeline(folder: Path) -> Path:
    """Copy the pipeline into a folder. Raises `UsageError` if a changed copy is there."""
    script, content = folder / PIPELINE_NAME, files("perfharness.demo").joinpath("pipeline.py").read_bytes()
    if script.exists() and script.read_bytes() != content:
        raise UsageError(f"{script} was changed; run it with `perfharness launch`, or choose another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    script.write_bytes(content)
    return script


def launch_pipeline(script: Path, arguments: Sequence[str], folder: Path, output: Output) -> int:
    """Print the command of a launch, run it, and return the exit code."""
    command = ["perfharness", "launch", "--explain", "-w", "1", "-o", str(folder), str(script), *arguments]
    output.message(f"$ {shlex.join(command)}")
    settings = {"explain": True, "warmup_batches": 1, "output_dir": folder}
    (plan,) = plan_launches([launch_options(script, arguments, settings)])
    return show_launch(plan, output, command)


def print_next(folder: Path, output: Output) -> None:
    """Print the next command; after both runs also their times."""
    before, after = stage_times(folder / "faulty"), stage_times(folder / "fixed")
    if not before or not after:
        more = [*(["--fixed"] if not after else []), *(["-o", str(folder)] if folder != DEFAULT_FOLDER else [])]
        output.message(f"Next, without the bottleneck: {shlex.join(['perfharness', 'demo', *more])}")
        return
    output.message("Next, with your own script: perfharness launch --explain -o out my_script.py")
    for stage in ("batch", "preprocess"):
        times = f"{milliseconds(before[stage])} → {milliseconds(after[stage])}"
        output.line(f"fixed: {stage}: {times} ({before[stage] / after[stage]:.1f} times as fast)")


def stage_times(folder: Path) -> dict[str, float]:
    """Mean times of the stages of a run, ms; empty without measured batches."""
    tree = open_run(folder).benchmark if (folder / BENCHMARK_MEAN_NAME).is_file() else None
    lines = [] if tree is None else stage_lines(tree)
    return {line.path[-1]: line.cpu.mean for line in lines if line.cpu.mean is not None}
