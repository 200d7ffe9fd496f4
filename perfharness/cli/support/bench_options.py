"""Options of `perfharness bench`, and what it shares with `compare-engines`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from perfharness.cli.support.options import split_commas
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.model.settings import option
from perfharness.render.console import Console, say

if TYPE_CHECKING:
    from perfharness.render.charts.drawing import Picture

CASES = "Cases"
MEASURING = "Measuring"
RESULTS = "Results"
RECOMMENDATION = "Recommendation"


def batch_sizes_of(text: str) -> list[int] | str:
    """`1,8` -> [1, 8]; a range stays text for the suite. Raises `ValueError`."""
    if re.fullmatch(r"\d+\.\.\d+", text):
        return text
    parts = split_commas(text)
    if not parts or not all(part.isdigit() for part in parts):
        raise ValueError("must be numbers such as 1,8,32, or a range such as 1..64")
    return [int(part) for part in parts]


class SuiteOptions(BaseModel):
    """Options that set the suite's key of their alias; None if not given."""

    model: list[str] | None = option(
        "A file, a SavedModel folder, or module:function. Repeatable.", CASES, "MODEL", key="models"
    )
    backend: list[str] | None = option(
        "Backend and its mode; NAME/all: all modes. Repeatable.", CASES, "NAME[/MODE]", key="backends"
    )
    precision: tuple[str, ...] | None = option(
        "Precisions: fp32, tf32, fp16, bf16, int8. [default: fp32]", CASES, "P,…", parse=split_commas, key="precisions"
    )
    batch_size: list[int] | str | None = option(
        "Batch sizes: 1,8,32, or 1..64 for 1, 2, 4, … 64. [default: 1]",
        CASES,
        "N,…",
        parse=batch_sizes_of,
        key="batch_sizes",
    )
    shape: list[str] | None = option(
        "Shape of a dynamic input: image=batchx3x224x224. Repeatable.", CASES, "NAME=DIMxDIM…", key="shapes"
    )
    calibration: Path | None = option("Samples by input name, to quantize ONNX models to int8.", CASES, "FILE.npz")
    device: str | None = option("auto: the GPU if there is one. [default: auto]", CASES, "auto|cpu|cuda")
    gpus: tuple[str, ...] | None = option(
        "Run every case on each of these GPUs (indices or UUIDs). [default: the first]",
        CASES,
        "GPU,…",
        parse=split_commas,
    )
    warmup: int | None = option("Iterations before the timed ones. [default: 50]", MEASURING, key="latency.warmup")
    iterations: int | None = option("Timed iterations per case. [default: 1000]", MEASURING, key="latency.iterations")
    duration: float | None = option(
        "Time each case for at least this long.", MEASURING, "SECONDS", key="latency.min_seconds", gt=0
    )
    memory_limit: str | None = option(
        "Stop a case that needs more memory: 12GB.", MEASURING, "SIZE", key="measure.memory_limit"
    )
    passes: tuple[str, ...] | None = option(
        "Passes: latency, telemetry, layers. [default: latency,telemetry]",
        MEASURING,
        "PASS,…",
        parse=split_commas,
        key="measure.passes",
    )
    layers: bool | None = option("Also time layers, and print those of the recommended case.", MEASURING)
    equality: bool | None = option("Compare all outputs with the baseline's.", MEASURING, negative="--no-equality")
    timeout: float | None = option("Time limit per process. [default: 1800]", MEASURING, "SECONDS", key="run.timeout_s")
    cool_down: float | None = option(
        "Before each case, wait until the GPU is below this temperature.", "", "CELSIUS", key="run.cool_down_c"
    )
    cool_down_limit: float | None = option(
        "Longest wait of --cool-down. [default: 300]", "", "SECONDS", key="run.cool_down_limit_s"
    )
    seed: int | None = option("Seed of the case order. [default: 1]", key="run.seed")
    shuffle: bool | None = option("Shuffle the cases. [default: shuffle]", negative="--in-order", key="run.shuffle")
    baseline: str | None = option(
        "Reference for speed-ups: BACKEND[/MODE][/PRECISION]. [default: the first]", RESULTS, "CELL"
    )
    max_latency_ms: float | None = option(
        "Recommend only cases within this latency; also the limit for --find-batch.",
        RECOMMENDATION,
        "MS",
        key="constraints.max_latency_ms",
    )
    latency_percentile: str | None = option(
        "Percentile for --max-latency-ms: p50, p90, p95 or p99. [default: p95]",
        RECOMMENDATION,
        "P",
        key="constraints.latency_percentile",
    )
    max_accuracy_loss: float | None = option(
        "Recommend only cases that lose at most this much.", RECOMMENDATION, "X", key="constraints.max_accuracy_loss"
    )
    accuracy_metric: str | None = option(
        "Metric for --max-accuracy-loss. [default: cosine]", RECOMMENDATION, "NAME", key="constraints.accuracy_metric"
    )
    accuracy_direction: str | None = option(
        "Better direction of a custom --accuracy-metric.",
        RECOMMENDATION,
        "higher|lower",
        key="constraints.accuracy_direction",
    )
    max_energy_per_item_j: float | None = option(
        "Recommend only cases within this energy per item.",
        RECOMMENDATION,
        "J",
        key="constraints.max_energy_per_item_j",
    )


class BenchSettings(BaseModel):
    """Options that are not part of the suite."""

    find_batch: bool = option(
        "Double the batch size until memory runs out, or up to --max-latency-ms. --batch-size is the range."
        " [default: 1..1024]",
        CASES,
        default=False,
    )
    start_up: int | None = option("Time N cold and N warm starts of one case.", MEASURING, "N", ge=1)
    output_dir: Path = option("Folder of the results.", RESULTS, flags="-o --output-dir", default=Path("bench_out"))
    resume: bool = option("Continue: run missing cases, and failed ones that can succeed now.", RESULTS, default=False)
    retry_failed: bool = option("With --resume, rerun every case that is not ok.", RESULTS, default=False)
    dry_run: bool = option("Check everything, print the cases in order, start nothing.", RESULTS, default=False)
    charts: bool | None = option(
        "Draw charts as PNG files and a page. [default: charts]", RESULTS, negative="--no-charts"
    )
    metrics: str | None = option(
        "Serve the readings of the telemetry pass to Prometheus at this address, such as 127.0.0.1:9400.",
        MEASURING,
        "HOST:PORT",
    )
    history: bool = option("Add the suite to the history.", RESULTS, default=True, negative="--no-history")


RARE = {
    *("warmup", "timeout", "cool_down", "cool_down_limit", "seed", "shuffle", "baseline", "latency_percentile"),
    *("max_accuracy_loss", "accuracy_metric", "accuracy_direction", "max_energy_per_item_j"),
    *("retry_failed", "history", "metrics"),
}
"""Options that only `--help-all` shows; they are usually set in SUITE.toml."""

SHOWN = {*SuiteOptions.model_fields, *BenchSettings.model_fields} - RARE


def suite_options(options: SuiteOptions) -> dict[str, Any]:
    """The given options as keys of a suite."""
    from perfharness.backends.models import shapes_of

    found = options.model_dump(by_alias=True, exclude_none=True)
    if options.shape is not None:
        found["shapes"] = shapes_of(options.shape)
    if options.duration is not None:
        found["latency.max_seconds"] = max(120.0, 2 * options.duration)
    if options.memory_limit is not None:
        found["constraints.memory_limit"] = options.memory_limit
    return found


def check_utf8(arguments: Sequence[str]) -> None:
    """Raise `UsageError` if an argument or the working directory cannot be written as JSON."""
    for what in (*arguments, str(Path.cwd())):
        if (shown := what.encode("utf-8", "backslashreplace").decode()) != what:
            raise UsageError(f"{shown} is not UTF-8, which results cannot store; rename it")


def say_drawn(console: Console, make: Callable[[], Sequence[Picture]], folder: Path, page: str) -> None:
    """Draw charts and print their names, or why they cannot be drawn."""
    from perfharness.render.html import draw

    try:
        written = draw(make(), folder, page)
    except PerfHarnessError as error:
        say(console, str(error))
        return
    if written:
        say(console, f"charts: {', '.join(path.name for path in written)}")
