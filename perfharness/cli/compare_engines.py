"""`perfharness compare-engines`: engines that make a map of an image, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BaseModel, Field

from perfharness.cli.support.bench_options import (
    MEASURING,
    RESULTS,
    check_utf8,
    exit_code,
    say_drawn,
)
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, command_line
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.model.bench import Precision
from perfharness.model.settings import Option
from perfharness.render.console import Console, say

if TYPE_CHECKING:
    from perfharness.bench.engines.model import EngineComparison

OUTPUT_DIR = "compare_engines"

ENGINES, DATA = "Engines", "Images and ground truth"


class ManyValues(GroupedCommand):
    """Options that take all that follows up to the next option: `--engines a b c`."""

    many = ("--engines", "--backends", "--metric")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option's name before each of its values."""
        check_utf8(args)
        parsed: list[str] = super().parse_args(ctx, repeated(args, self.many))
        return parsed


def repeated(arguments: list[str], many: tuple[str, ...]) -> list[str]:
    """`--engines a b` -> `--engines a --engines b`."""
    found: list[str] = []
    option: str | None = None
    for argument in arguments:
        is_option = argument.startswith("-") and len(argument) > 1
        if is_option:
            option = argument if argument in many else None
        elif option is not None and found[-1] != option:
            found.append(option)
        found.append(argument)
    return found


class EngineSettings(BaseModel):
    """What is compared, on what, and for how long."""

    engines: Annotated[
        list[str],
        Option(
            ("--engines",), ENGINES, "Files (.onnx, .engine, .plan, .pt2, …) or module:function.", metavar="ENGINE…"
        ),
    ]
    image: Annotated[Path, Option(("--image",), DATA, "Image or .npy; its map is drawn, and it is what is timed.")]
    gt: Annotated[Path | None, Option(("--gt",), DATA, "Ground truth of the image: .npy, .npz, or a 16-bit image.")] = (
        None
    )
    metric_images_dir: Annotated[
        Path | None, Option(("--metric-images-dir",), DATA, "Images over which metrics are computed.")
    ] = None
    metric_gt_dir: Annotated[
        Path | None, Option(("--metric-gt-dir",), DATA, "Their ground truth, matched by the names of the files.")
    ] = None
    metric: Annotated[
        list[str], Option(("--metric",), DATA, "Metrics of your own, module:function.", metavar="FUNCTION…")
    ] = []
    backends: Annotated[
        list[str],
        Option(
            ("--backends",), ENGINES, "One for all engines or one for each. [default: by file kind]", metavar="NAME…"
        ),
    ] = []
    precision: Annotated[
        Precision | None,
        Option(("--precision",), ENGINES, "Precision of all. [default: that of the ONNX file, else fp32]"),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Option(("--device",), ENGINES, "auto: the GPU where there is one.")
    ] = "auto"
    gpu_id: Annotated[int | None, Option(("--gpu-id",), ENGINES, "NVML's index of the GPU. [default: 0]")] = None
    input_size: Annotated[
        str, Option(("--input-size",), ENGINES, "Where a model leaves its height and width open.", metavar="N|HxW")
    ] = "518"
    preprocess: Annotated[
        str | None,
        Option(("--preprocess",), DATA, "module:function that makes the input of a path.", metavar="FUNCTION"),
    ] = None
    mean: Annotated[str, Option(("--mean",), DATA, "Mean of the channels, 0 to 1.")] = "0.485,0.456,0.406"
    std: Annotated[str, Option(("--std",), DATA, "Standard deviation of the channels, 0 to 1.")] = "0.229,0.224,0.225"
    output: Annotated[str | None, Option(("--output",), ENGINES, "Name of the map. [default: the first output]")] = None
    scaling: Annotated[
        Literal["median", "none"], Option(("--scaling",), DATA, "Scaling of the map to its ground truth.")
    ] = "median"
    prediction: Annotated[
        Literal["depth", "disparity"],
        Option(("--prediction",), DATA, "disparity: larger is nearer, and its inverse is compared."),
    ] = "depth"
    min_depth: Annotated[float, Option(("--min-depth",), DATA, "Ground truth below is not valid.")] = Field(
        default=1e-3, gt=0
    )
    max_depth: Annotated[float, Option(("--max-depth",), DATA, "Ground truth above is not valid.")] = Field(
        default=80.0, gt=0
    )
    gt_scale: Annotated[
        float, Option(("--gt-scale",), DATA, "Pixels of ground truth images are divided by it: KITTI 256, mm 1000.")
    ] = Field(default=1.0, gt=0)
    warmup: Annotated[int, Option(("--warmup",), MEASURING, "Iterations before the timed ones.")] = Field(
        default=50, ge=0
    )
    iterations: Annotated[int, Option(("--iterations",), MEASURING, "Timed iterations.")] = Field(default=1000, ge=1)
    max_seconds: Annotated[float, Option(("--max-seconds",), MEASURING, "Longest time of the timed iterations.")] = (
        Field(default=600.0, gt=0)
    )
    gpu_sample_interval: Annotated[
        float,
        Option(("--gpu-sample-interval",), MEASURING, "Interval of the sampler in the second pass.", metavar="SECONDS"),
    ] = Field(default=0.1, gt=0)
    sample_seconds: Annotated[float, Option(("--sample-seconds",), MEASURING, "Length of the second pass.")] = Field(
        default=5.0, gt=0
    )
    threads: Annotated[
        int | None, Option(("--threads",), ENGINES, "Threads on the CPU. [default: the backend's choice]")
    ] = None
    timeout: Annotated[
        float | None, Option(("--timeout",), MEASURING, "End an engine that takes longer.", metavar="SECONDS")
    ] = None
    keep_maps: Annotated[bool, Option(("--keep-maps",), RESULTS, "Keep every engine's maps of the data set.")] = False
    output_dir: Annotated[Path, Option(("-o", "--output-dir"), RESULTS, "Folder of the results.")] = Path(OUTPUT_DIR)


SHOWN = {
    "engines", "image", "gt", "metric_images_dir", "metric_gt_dir", "metric", "backends", "precision", "device",
    "input_size", "scaling", "prediction", "gt_scale", "iterations", "output_dir",
}  # fmt: skip
"""Options in `--help`; `--help-all` shows all."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare-engines", cls=ManyValues, context_settings=CONTEXT)(compare_engines_verb)


@with_settings(shown=SHOWN)
def compare_engines_verb(*, asked: EngineSettings) -> None:
    """Compare engines that make a map of an image: maps, errors, speed and GPU metrics.

    Each engine runs in a process of its own. Speed is measured with no sampler running; utilisation, memory, power and
    clocks in a second pass. Writes three PNG, a page of them and compare_engines.json.

    Exit codes: 0 all compared; 1 an engine's process failed, or all was interrupted; 2 the command line is wrong; 3
    the ground truth cannot be read, could not be compared, or some engines cannot run here.
    """
    from perfharness.bench import compare_engines
    from perfharness.bench.accuracy.depth import DepthSettings
    from perfharness.bench.accuracy.figure import SampleError
    from perfharness.bench.accuracy.preprocess import PreprocessSettings
    from perfharness.bench.engines.model import CompareSettings
    from perfharness.render.charts.engines import ENGINES_PAGE, engine_pictures
    from perfharness.render.terminal.engines import print_comparison

    messages = Console(stderr=True)
    settings = CompareSettings(
        image=asked.image,
        truth=asked.gt,
        metric_images=asked.metric_images_dir,
        metric_truth=asked.metric_gt_dir,
        truth_scale=asked.gt_scale,
        depth=DepthSettings(
            min_depth=asked.min_depth,
            max_depth=asked.max_depth,
            scaling=asked.scaling,
            prediction=asked.prediction,
        ),
        preprocess=PreprocessSettings(
            function=asked.preprocess, mean=_three("--mean", asked.mean), std=_three("--std", asked.std)
        ),
        metrics=tuple(asked.metric),
        output_name=asked.output,
        input_size=parse_size(asked.input_size),
        warmup=asked.warmup,
        iterations=asked.iterations,
        max_seconds=asked.max_seconds,
        sample_interval_s=asked.gpu_sample_interval,
        sample_seconds=asked.sample_seconds,
        threads=asked.threads,
    )
    try:
        comparison, place = compare_engines(
            asked.engines,
            settings,
            asked.output_dir,
            backends=asked.backends,
            device=asked.device,
            gpu_id=asked.gpu_id,
            precision=asked.precision,
            timeout_s=asked.timeout,
            keep_maps=asked.keep_maps,
            say=lambda text: say(messages, text),
            command=command_line(),
        )
    except SampleError as error:
        say(messages, f"perfharness: --gt: {error}; nothing was started")
        raise typer.Exit(EXIT_CHECK_FAILED) from error
    say_drawn(messages, lambda: engine_pictures(comparison, place), place, ENGINES_PAGE)
    print_comparison(Console(), comparison)
    if place != asked.output_dir:
        say(messages, f"nothing was measured, so the earlier results in {asked.output_dir} are kept")
    say(messages, f"Results: {place.absolute()}")
    statuses = [one.status for one in comparison.engines]
    bad = any(status != "ok" for status in statuses) or _lacks_accuracy(comparison)
    raise typer.Exit(exit_code(statuses, interrupted="not-run" in statuses, check_failed=bad))


def _lacks_accuracy(comparison: EngineComparison) -> bool:
    """Whether an engine was compared with no ground truth at all, although there is some."""
    settings = comparison.settings
    return any(
        truth is not None and (record is None or not record.samples)
        for one in comparison.engines
        for truth, record in ((settings.truth, one.image_accuracy), (settings.metric_truth, one.accuracy))
    )


def parse_size(text: str) -> tuple[int, int]:
    """`518` or `392x518` (height, width). Raises `UsageError`."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"--input-size {text}: must be a number of pixels, or HEIGHTxWIDTH")
    return int(parts[0]), int(parts[-1])


def _three(name: str, text: str) -> tuple[float, float, float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 3:
        raise UsageError(f"{name} {text}: must be three numbers, as in 0.5,0.5,0.5")
    return values[0], values[1], values[2]
