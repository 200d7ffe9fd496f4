"""`perfharness compare-engines`: compare engines that compute a map of an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from pydantic import BaseModel

from perfharness.cli.support.bench_options import MEASURING, RESULTS, check_utf8, say_drawn
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, command_line, split_commas
from perfharness.cli.support.settings import with_settings
from perfharness.model.bench import Precision
from perfharness.model.settings import option
from perfharness.render.console import Console, print_blocks, say

if TYPE_CHECKING:
    from perfharness.bench.engines.model import EngineComparison

ENGINES, DATA = "Engines", "Images and ground truth"


class ManyValues(GroupedCommand):
    """A command with options that take several values: `--engines a b c`."""

    many = ("--engines", "--backends", "--metric")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        check_utf8(args)
        parsed: list[str] = super().parse_args(ctx, repeat_options(args, self.many))
        return parsed


def repeat_options(arguments: list[str], many: tuple[str, ...]) -> list[str]:
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


def three_numbers(text: str) -> tuple[float, ...]:
    """`0.5,0.5,0.5`. Raises `ValueError`."""
    values = tuple(map(float, split_commas(text)))
    if len(values) != 3:
        raise ValueError("must be three numbers such as 0.5,0.5,0.5")
    return values


def parse_size(text: str) -> tuple[int, int]:
    """`518` or `392x518` (height, width). Raises `ValueError`."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError("must be a number of pixels or HEIGHTxWIDTH")
    return int(parts[0]), int(parts[-1])


class EngineSettings(BaseModel):
    """Arguments of `bench.compare_engines`."""

    engines: list[str] = option(
        "Files (.onnx, .engine, .plan, .pt2, …) or module:function.", ENGINES, "ENGINE…", default=...
    )
    backends: list[str] = option(
        "One for all engines or one for each. [default: by file type]", ENGINES, "NAME…", default=[]
    )
    precision: Precision | None = option(
        "Precision of all engines. [default: that of the ONNX file, else fp32]", ENGINES
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto: the GPU if there is one.", ENGINES, default="auto")
    gpu_id: int | None = option("NVML's index of the GPU. [default: 0]", ENGINES)
    timeout_s: float | None = option("Stop an engine after this time.", MEASURING, "SECONDS", flags="--timeout")
    output_dir: Path = option(
        "Folder of the results.", RESULTS, flags="-o --output-dir", default=Path("benchmark_results")
    )


class MapSettings(BaseModel):
    """Fields of `bench.engines.model.CompareSettings`, by their aliases."""

    image: Path = option("Image or .npy to time the engines with; its map is drawn.", DATA, default=...)
    gt: Path | None = option("Ground truth of the image: .npy, .npz, or a 16-bit image.", DATA, key="truth")
    metric_images_dir: Path | None = option("Images to compute metrics over.", DATA, key="metric_images")
    metric_gt_dir: Path | None = option("Ground truth of these images, matched by file name.", DATA, key="metric_truth")
    metric: list[str] = option("Your own metrics, module:function.", DATA, "FUNCTION…", default=[], key="metrics")
    input_size: tuple[int, int] = option(
        "Height and width of dynamic input axes. [default: 518]", ENGINES, "N|HxW", default=(518, 518), parse=parse_size
    )
    preprocess: str | None = option(
        "module:function that turns a path into the model's input.", DATA, "FUNCTION", key="preprocess.function"
    )
    mean: tuple[float, ...] | None = option(
        "Mean of the channels, 0 to 1. [default: 0.485,0.456,0.406]", DATA, parse=three_numbers, key="preprocess.mean"
    )
    std: tuple[float, ...] | None = option(
        "Standard deviation of the channels, 0 to 1. [default: 0.229,0.224,0.225]",
        DATA,
        parse=three_numbers,
        key="preprocess.std",
    )
    output: str | None = option("Name of the map. [default: the first output]", ENGINES, key="output_name")
    scaling: Literal["median", "none"] = option(
        "Scale the map to its ground truth.", DATA, default="median", key="depth.scaling"
    )
    prediction: Literal["depth", "disparity"] = option(
        "Kind of map; disparity (larger is nearer) is inverted first.", DATA, default="depth", key="depth.prediction"
    )
    min_depth: float = option("Ignore ground truth below this.", DATA, default=1e-3, gt=0, key="depth.min_depth")
    max_depth: float = option("Ignore ground truth above this.", DATA, default=80.0, gt=0, key="depth.max_depth")
    gt_scale: float = option(
        "Divide ground truth pixels by this: 256 for KITTI, 1000 for mm.", DATA, default=1.0, gt=0, key="truth_scale"
    )
    warmup: int = option("Iterations before the timed ones.", MEASURING, default=50, ge=0)
    iterations: int = option("Timed iterations.", MEASURING, default=1000, ge=1)
    max_seconds: float = option("Time limit of the timed iterations.", MEASURING, default=600.0, gt=0)
    gpu_sample_interval: float = option(
        "Sampling interval in the second pass.", MEASURING, "SECONDS", default=0.1, gt=0, key="sample_interval_s"
    )
    threads: int | None = option("CPU threads. [default: the backend's choice]", ENGINES)
    keep_maps: bool = option("Keep each engine's maps of the data set.", RESULTS, default=False)


SHOWN = {
    *("engines", "image", "gt", "metric_images_dir", "metric_gt_dir", "metric", "backends", "precision", "device"),
    *("input_size", "scaling", "prediction", "gt_scale", "iterations", "output_dir"),
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare-engines", cls=ManyValues, context_settings=CONTEXT)(compare_engines_verb)


@with_settings(shown=SHOWN)
def compare_engines_verb(*, asked: EngineSettings, compared: MapSettings) -> None:
    """Compare engines that compute a map of an image: maps, errors, speed and GPU metrics.

    Each engine runs in its own process. A first pass measures speed without a sampler, a second one utilisation,
    memory, power and clocks. Writes three PNG files, a page with them, and compare_engines.json.

    Exit codes: 0 all compared; 1 an engine's process failed, or interrupted; 2 usage; 3 the ground truth cannot be read
    or compared, or some engines cannot run here.
    """
    from perfharness.analysis.suites.bench_figures import cases_exit_code
    from perfharness.bench import compare_engines
    from perfharness.bench.accuracy.data import SampleError
    from perfharness.bench.engines.model import CompareSettings
    from perfharness.render.charts.engines import ENGINES_PAGE, engine_pictures
    from perfharness.render.views.engines import engines_view

    messages = Console(stderr=True)
    settings: dict[str, Any] = {}
    for key, value in compared.model_dump(by_alias=True, exclude_none=True).items():
        table, _, name = key.rpartition(".")
        (settings.setdefault(table, {}) if table else settings)[name] = value
    run = asked.model_dump(exclude={"engines", "output_dir"})
    try:
        comparison, place = compare_engines(
            asked.engines,
            CompareSettings.model_validate(settings),
            asked.output_dir,
            **run,
            say=lambda text: say(messages, text),
            command=command_line(),
        )
    except SampleError as error:
        say(messages, f"perfharness: --gt: {error}; nothing was started")
        raise typer.Exit(EXIT_CHECK_FAILED) from error
    say_drawn(messages, lambda: engine_pictures(comparison, place), place, ENGINES_PAGE)
    print_blocks(Console(), engines_view(comparison))
    if place != asked.output_dir:
        say(messages, f"Nothing was measured. Kept the previous results in {asked.output_dir}.")
    say(messages, f"Results: {place.absolute()}")
    statuses = [one.status for one in comparison.engines]
    bad = any(status != "ok" for status in statuses) or _lacks_accuracy(comparison)
    raise typer.Exit(cases_exit_code(statuses, interrupted="not-run" in statuses, check_failed=bad))


def _lacks_accuracy(comparison: EngineComparison) -> bool:
    """Whether there is ground truth with which an engine was not compared."""
    settings = comparison.settings
    return any(
        truth is not None and (record is None or not record.samples)
        for one in comparison.engines
        for truth, record in ((settings.truth, one.image_accuracy), (settings.metric_truth, one.accuracy))
    )
