"""Options of `perfharness bench`, and what it shares with `compare-engines`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from perfharness.cli.support.options import split_commas
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.model.settings import Option
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

    model: Annotated[
        list[str] | None,
        Option(("--model",), CASES, "A file, a SavedModel folder, or module:function. Repeatable.", metavar="MODEL"),
    ] = Field(default=None, serialization_alias="models")
    backend: Annotated[
        list[str] | None,
        Option(("--backend",), CASES, "Backend and its mode; NAME/all: all modes. Repeatable.", metavar="NAME[/MODE]"),
    ] = Field(default=None, serialization_alias="backends")
    precision: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(split_commas),
        Option(("--precision",), CASES, "Precisions: fp32, tf32, fp16, bf16, int8. [default: fp32]", metavar="P,…"),
    ] = Field(default=None, serialization_alias="precisions")
    batch_size: Annotated[
        list[int] | str | None,
        BeforeValidator(batch_sizes_of),
        Option(
            ("--batch-size",),
            CASES,
            "Batch sizes: 1,8,32, or 1..64 for 1, 2, 4, … 64. [default: 1]",
            metavar="N,…",
        ),
    ] = Field(default=None, serialization_alias="batch_sizes")
    shape: Annotated[
        list[str] | None,
        Option(
            ("--shape",),
            CASES,
            "Shape of a dynamic input: image=batchx3x224x224. Repeatable.",
            metavar="NAME=DIMxDIM…",
        ),
    ] = Field(default=None, serialization_alias="shapes")
    calibration: Annotated[
        Path | None,
        Option(
            ("--calibration",),
            CASES,
            "Samples by input name, to quantize ONNX models to int8.",
            metavar="FILE.npz",
        ),
    ] = None
    device: Annotated[
        str | None,
        Option(("--device",), CASES, "auto: the GPU if there is one. [default: auto]", metavar="auto|cpu|cuda"),
    ] = None
    gpus: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(split_commas),
        Option(
            ("--gpus",),
            CASES,
            "Run every case on each of these GPUs (indices or UUIDs). [default: the first]",
            metavar="GPU,…",
        ),
    ] = None
    warmup: Annotated[
        int | None, Option(("--warmup",), MEASURING, "Iterations before the timed ones. [default: 50]")
    ] = Field(default=None, serialization_alias="latency.warmup")
    iterations: Annotated[
        int | None, Option(("--iterations",), MEASURING, "Timed iterations per case. [default: 1000]")
    ] = Field(default=None, serialization_alias="latency.iterations")
    duration: Annotated[
        float | None, Option(("--duration",), MEASURING, "Time each case for at least this long.", metavar="SECONDS")
    ] = Field(default=None, serialization_alias="latency.min_seconds", gt=0)
    memory_limit: Annotated[
        str | None,
        Option(("--memory-limit",), MEASURING, "Stop a case that needs more memory: 12GB.", metavar="SIZE"),
    ] = Field(default=None, serialization_alias="measure.memory_limit")
    passes: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(split_commas),
        Option(
            ("--passes",),
            MEASURING,
            "Passes: latency, telemetry, layers. [default: latency,telemetry]",
            metavar="PASS,…",
        ),
    ] = Field(default=None, serialization_alias="measure.passes")
    layers: Annotated[
        bool | None, Option(("--layers",), MEASURING, "Also time layers, and print those of the recommended case.")
    ] = None
    equality: Annotated[
        bool | None,
        Option(("--equality",), MEASURING, "Compare all outputs with the baseline's.", negative="--no-equality"),
    ] = None
    timeout: Annotated[
        float | None, Option(("--timeout",), MEASURING, "Time limit per process. [default: 1800]", metavar="SECONDS")
    ] = Field(default=None, serialization_alias="run.timeout_s")
    cool_down: Annotated[
        float | None,
        Option(
            ("--cool-down",), "", "Before each case, wait until the GPU is below this temperature.", metavar="CELSIUS"
        ),
    ] = Field(default=None, serialization_alias="run.cool_down_c")
    cool_down_limit: Annotated[
        float | None,
        Option(("--cool-down-limit",), "", "Longest wait of --cool-down. [default: 300]", metavar="SECONDS"),
    ] = Field(default=None, serialization_alias="run.cool_down_limit_s")
    seed: Annotated[int | None, Option(("--seed",), "", "Seed of the case order. [default: 1]")] = Field(
        default=None, serialization_alias="run.seed"
    )
    shuffle: Annotated[
        bool | None, Option(("--shuffle",), "", "Shuffle the cases. [default: shuffle]", negative="--in-order")
    ] = Field(default=None, serialization_alias="run.shuffle")
    baseline: Annotated[
        str | None,
        Option(
            ("--baseline",),
            RESULTS,
            "Reference for speed-ups: BACKEND[/MODE][/PRECISION]. [default: the first]",
            metavar="CELL",
        ),
    ] = None
    max_latency_ms: Annotated[
        float | None,
        Option(
            ("--max-latency-ms",),
            RECOMMENDATION,
            "Recommend only cases within this latency; also the limit for --find-batch.",
            metavar="MS",
        ),
    ] = Field(default=None, serialization_alias="constraints.max_latency_ms")
    latency_percentile: Annotated[
        str | None,
        Option(
            ("--latency-percentile",),
            RECOMMENDATION,
            "Percentile for --max-latency-ms: p50, p90, p95 or p99. [default: p95]",
            metavar="P",
        ),
    ] = Field(default=None, serialization_alias="constraints.latency_percentile")
    max_accuracy_loss: Annotated[
        float | None,
        Option(
            ("--max-accuracy-loss",), RECOMMENDATION, "Recommend only cases that lose at most this much.", metavar="X"
        ),
    ] = Field(default=None, serialization_alias="constraints.max_accuracy_loss")
    accuracy_metric: Annotated[
        str | None,
        Option(
            ("--accuracy-metric",), RECOMMENDATION, "Metric for --max-accuracy-loss. [default: cosine]", metavar="NAME"
        ),
    ] = Field(default=None, serialization_alias="constraints.accuracy_metric")
    accuracy_direction: Annotated[
        str | None,
        Option(
            ("--accuracy-direction",),
            RECOMMENDATION,
            "Better direction of a custom --accuracy-metric.",
            metavar="higher|lower",
        ),
    ] = Field(default=None, serialization_alias="constraints.accuracy_direction")
    max_energy_per_item_j: Annotated[
        float | None,
        Option(
            ("--max-energy-per-item-j",),
            RECOMMENDATION,
            "Recommend only cases within this energy per item.",
            metavar="J",
        ),
    ] = Field(default=None, serialization_alias="constraints.max_energy_per_item_j")


class BenchSettings(BaseModel):
    """Options that are not part of the suite."""

    find_batch: Annotated[
        bool,
        Option(
            ("--find-batch",),
            CASES,
            "Double the batch size until memory runs out, or up to --max-latency-ms. --batch-size is the range."
            " [default: 1..1024]",
        ),
    ] = False
    start_up: Annotated[
        int | None, Option(("--start-up",), MEASURING, "Time N cold and N warm starts of one case.", metavar="N")
    ] = Field(default=None, ge=1)
    output_dir: Annotated[Path, Option(("-o", "--output-dir"), RESULTS, "Folder of the results.")] = Path("bench_out")
    resume: Annotated[
        bool, Option(("--resume",), RESULTS, "Continue: run missing cases, and failed ones that can succeed now.")
    ] = False
    retry_failed: Annotated[
        bool, Option(("--retry-failed",), RESULTS, "With --resume, rerun every case that is not ok.")
    ] = False
    dry_run: Annotated[
        bool, Option(("--dry-run",), RESULTS, "Check everything, print the cases in order, start nothing.")
    ] = False
    charts: Annotated[
        bool | None,
        Option(
            ("--charts",), RESULTS, "Draw charts as PNG files and a page. [default: charts]", negative="--no-charts"
        ),
    ] = None
    metrics: Annotated[
        str | None,
        Option(
            ("--metrics",),
            MEASURING,
            "Serve the readings of the telemetry pass to Prometheus at this address, such as 127.0.0.1:9400.",
            metavar="HOST:PORT",
        ),
    ] = None
    history: Annotated[
        bool, Option(("--history",), RESULTS, "Add the suite to the history.", negative="--no-history")
    ] = True


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
