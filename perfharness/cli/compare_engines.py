"""`perfharness compare-engines`: engines that make a map of an image, side by side."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfharness.cli.support.bench_options import (
    MEASURING,
    RESULTS,
    OutputDir,
    check_utf8,
    exit_code,
    say_drawn,
)
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, command_line
from perfharness.errors import UsageError
from perfharness.render.terminal.console import Console, say

if TYPE_CHECKING:
    from perfharness.bench.engines.model import EngineComparison

OUTPUT_DIR = "compare_engines"


DeviceOption = Enum("DeviceOption", {"AUTO": "auto", "CPU": "cpu", "CUDA": "cuda"}, type=str)
ScalingOption = Enum("ScalingOption", {"MEDIAN": "median", "NONE": "none"}, type=str)
PredictionOption = Enum("PredictionOption", {"DEPTH": "depth", "DISPARITY": "disparity"}, type=str)
PrecisionOption = Enum(
    "PrecisionOption", {"FP32": "fp32", "TF32": "tf32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8"}, type=str
)


def _option(panel: str, name: str, text: str, **how: Any) -> Any:
    """An option of a group of the help; without a default it is required."""
    return typer.Option(name, rich_help_panel=panel, help=text, **how)


_of_engines, _of_data = partial(_option, "Engines"), partial(_option, "Images and ground truth")
_of_measuring, _of_results = partial(_option, MEASURING), partial(_option, RESULTS)


class ManyValues(GroupedCommand):
    """Options that take all that follows up to the next option: `--engines a b c`."""

    rare = frozenset(
        {
            "gpu_id", "output", "threads", "min_depth", "max_depth", "preprocess", "mean", "std", "warmup",
            "max_seconds", "gpu_sample_interval", "sample_seconds", "timeout", "keep_maps",
        }
    )  # fmt: skip
    many = ("--engines", "--backends", "--metric")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            parameter.hidden = parameter.hidden or parameter.name in self.rare  # type: ignore[attr-defined]

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


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare-engines", cls=ManyValues, context_settings=CONTEXT)(compare_engines_verb)


def compare_engines_verb(
    engines: Annotated[
        list[str],
        _of_engines(
            "--engines",
            "Files (.onnx, .engine, .plan, .pt2, …) or module:function.",
            metavar="ENGINE…",
            show_default=False,
        ),
    ],
    image: Annotated[
        Path, _of_data("--image", "Image or .npy; its map is drawn, and it is what is timed.", show_default=False)
    ],
    gt: Annotated[Path | None, _of_data("--gt", "Ground truth of the image: .npy, .npz, or a 16-bit image.")] = None,
    metric_images_dir: Annotated[
        Path | None, _of_data("--metric-images-dir", "Images over which metrics are computed.")
    ] = None,
    metric_gt_dir: Annotated[
        Path | None, _of_data("--metric-gt-dir", "Their ground truth, matched by the names of the files.")
    ] = None,
    metric: Annotated[
        list[str] | None, _of_data("--metric", "Metrics of your own, module:function.", metavar="FUNCTION…")
    ] = None,
    backends: Annotated[
        list[str] | None,
        _of_engines("--backends", "One for all engines or one for each. [default: by file kind]", metavar="NAME…"),
    ] = None,
    precision: Annotated[
        PrecisionOption | None, _of_engines("--precision", "Of all. [default: that of the ONNX file, else fp32]")
    ] = None,
    device: Annotated[DeviceOption, _of_engines("--device", "auto: the GPU where there is one.")] = DeviceOption.AUTO,
    gpu_id: Annotated[int | None, _of_engines("--gpu-id", "NVML's index of the GPU. [default: 0]")] = None,
    input_size: Annotated[
        str, _of_engines("--input-size", "Where a model leaves its height and width open.", metavar="N|HxW")
    ] = "518",
    preprocess: Annotated[
        str | None,
        _of_data("--preprocess", "module:function that makes the input of a path.", metavar="FUNCTION"),
    ] = None,
    mean: Annotated[str, _of_data("--mean", "Of the channels, 0 to 1.")] = "0.485,0.456,0.406",
    std: Annotated[str, _of_data("--std", "Of the channels, 0 to 1.")] = "0.229,0.224,0.225",
    output: Annotated[str | None, _of_engines("--output", "Name of the map. [default: the first output]")] = None,
    scaling: Annotated[ScalingOption, _of_data("--scaling", "Of the map to its ground truth.")] = ScalingOption.MEDIAN,
    prediction: Annotated[
        PredictionOption, _of_data("--prediction", "disparity: larger is nearer, and its inverse is compared.")
    ] = PredictionOption.DEPTH,
    min_depth: Annotated[float, _of_data("--min-depth", "Ground truth below is not valid.")] = 1e-3,
    max_depth: Annotated[float, _of_data("--max-depth", "Ground truth above is not valid.")] = 80.0,
    gt_scale: Annotated[
        float, _of_data("--gt-scale", "Pixels of ground truth images are divided by it: KITTI 256, mm 1000.")
    ] = 1.0,
    warmup: Annotated[int, _of_measuring("--warmup", "Iterations before the timed ones.", min=0)] = 50,
    iterations: Annotated[int, _of_measuring("--iterations", "Timed ones.", min=1)] = 1000,
    max_seconds: Annotated[float, _of_measuring("--max-seconds", "Of the timed iterations, at most.")] = 600.0,
    gpu_sample_interval: Annotated[
        float, _of_measuring("--gpu-sample-interval", "Of the sampler in the second pass.", metavar="SECONDS")
    ] = 0.1,
    sample_seconds: Annotated[float, _of_measuring("--sample-seconds", "Length of the second pass.")] = 5.0,
    threads: Annotated[int | None, _of_engines("--threads", "On the CPU. [default: the backend's choice]")] = None,
    timeout: Annotated[
        float | None, _of_measuring("--timeout", "End an engine that takes longer.", metavar="SECONDS")
    ] = None,
    keep_maps: Annotated[bool, _of_results("--keep-maps", "Keep every engine's maps of the data set.")] = False,
    output_dir: OutputDir = Path(OUTPUT_DIR),
) -> None:
    """Depth engines, or any that make a map of an image, side by side: maps, errors, speed, and GPU metrics.

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
    for name, value in (("--min-depth", min_depth), ("--max-depth", max_depth), ("--gt-scale", gt_scale),
                        ("--gpu-sample-interval", gpu_sample_interval), ("--sample-seconds", sample_seconds),
                        ("--max-seconds", max_seconds)):  # fmt: skip
        if not value > 0:
            raise UsageError(f"{name} {value:g} must be more than 0")
    settings = CompareSettings(
        image=image,
        truth=gt,
        metric_images=metric_images_dir,
        metric_truth=metric_gt_dir,
        truth_scale=gt_scale,
        depth=DepthSettings(
            min_depth=min_depth, max_depth=max_depth, scaling=scaling.value, prediction=prediction.value
        ),
        preprocess=PreprocessSettings(function=preprocess, mean=_three("--mean", mean), std=_three("--std", std)),
        metrics=tuple(metric or ()),
        output_name=output,
        input_size=parse_size(input_size),
        warmup=warmup,
        iterations=iterations,
        max_seconds=max_seconds,
        sample_interval_s=gpu_sample_interval,
        sample_seconds=sample_seconds,
        threads=threads,
    )
    try:
        comparison, place = compare_engines(
            engines, settings, output_dir, backends=backends or (), device=device.value, gpu_id=gpu_id,
            precision=None if precision is None else precision.value, timeout_s=timeout, keep_maps=keep_maps,
            say=lambda text: say(messages, text), command=command_line(),
        )  # fmt: skip
    except SampleError as error:
        say(messages, f"perfharness: --gt: {error}; nothing was started")
        raise typer.Exit(EXIT_CHECK_FAILED) from error
    say_drawn(messages, lambda: engine_pictures(comparison, place), place, ENGINES_PAGE)
    print_comparison(Console(), comparison)
    if place != output_dir:
        say(messages, f"nothing was measured, so the earlier results in {output_dir} are kept")
    say(messages, f"results: {place.absolute()}")
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
