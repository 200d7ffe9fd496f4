"""The spec and the result of one engine's process, and the comparison of all. They are files, so they are validated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.bench.accuracy.preprocess import PreprocessSettings
from perfharness.bench.spec import CaseSpec
from perfharness.model.base import Settings
from perfharness.model.bench import (
    AccuracyRecord,
    CaseResult,
    CaseStatus,
    LatencyStats,
    MachineRecord,
    Precision,
    TensorSpec,
)
from perfharness.model.checks import MaskedArguments

COMPARISON_NAME = "compare_engines.json"
COMPARISON_VERSION = 1
WALL_NAME = "wall_ns.npy"
ENGINE_ENTRY = "perfharness.bench.engines.engine"
IMAGE_FOLDER, MAPS_FOLDER = "image", "maps"
"""Outputs of the one image, and of the data set, as written by `bench.accuracy.of_case`."""

PICTURES = ("depth_comparison.png", "speed_benchmark.png", "gpu_utilization.png", "compare_engines.html")
"""Drawn of a comparison, in its folder."""

Device = Literal["cpu", "cuda"]


class CompareSettings(Settings):
    """Settings that apply to every engine.

    Args:
        image: shown in the picture, and the input of the timed rounds.
        truth: of the image.
        metric_images, metric_truth: folders whose files are matched by name.
        input_size: height and width, where they are open in the model.
        max_seconds: of the timed rounds, at most; likewise of the warm-up.
        sample_interval_s, sample_seconds: of the telemetry pass.
    """

    image: Path
    truth: Path | None = None
    metric_images: Path | None = None
    metric_truth: Path | None = None
    metric_limit: int | None = Field(default=None, ge=1)
    truth_scale: float = Field(default=1.0, gt=0)
    depth: DepthSettings = DepthSettings()
    preprocess: PreprocessSettings = PreprocessSettings()
    metrics: tuple[str, ...] = ()
    output_name: str | None = None
    input_size: tuple[int, int] = (518, 518)
    warmup: int = Field(default=50, ge=0)
    iterations: int = Field(default=1000, ge=1)
    max_seconds: float = Field(default=600.0, gt=0)
    sample_interval_s: float = Field(default=0.1, gt=0)
    sample_seconds: float = Field(default=5.0, gt=0)
    threads: int | None = Field(default=None, ge=1)


class EngineSpec(CaseSpec):
    """One engine: `spec.json` of a case with a batch of one image.

    Args:
        precision: None: that of the file.
    """

    precision: Precision | None = None
    settings: CompareSettings


class GpuUse(Settings):
    """GPU figures of the telemetry pass; None with a reason in the engine's `reasons`."""

    utilization_percent: float | None = None
    power_mean_w: float | None = None
    energy_per_inference_j: float | None = None
    memory_peak_bytes: int | None = None
    clock_drop_percent: float | None = None
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None
    inferences: int | None = None


class EngineCase(CaseResult):
    """`result.json` of an engine's process: a case's result, and that of its map.

    Args:
        engine_reasons: field of `EngineResult` -> why it is None.
        remarks: caveats on its numbers.
    """

    precision: Precision | None = None
    mode: str = ""
    input: TensorSpec | None = None
    output: TensorSpec | None = None
    gpu: GpuUse = GpuUse()
    image_accuracy: AccuracyRecord | None = None
    engine_reasons: dict[str, str] = Field(default_factory=dict)
    remarks: list[str] = Field(default_factory=list)


class EngineResult(Settings):
    """One engine in `compare_engines.json`, and its `result.json` at the end.

    Args:
        reasons: field -> why it is None.
        remarks: caveats on its numbers.
        image_accuracy: of the one image; `accuracy` of the data set.
    """

    name: str
    engine: str
    backend: str
    device: Device
    mode: str = ""
    precision: Precision | None = None
    status: CaseStatus = "failed"
    reason: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    input: TensorSpec | None = None
    output: TensorSpec | None = None
    load_ms: float | None = None
    latency: LatencyStats | None = None
    device_latency: LatencyStats | None = None
    images_per_second: float | None = None
    speedup: float | None = None
    gpu: GpuUse = GpuUse()
    image_accuracy: AccuracyRecord | None = None
    accuracy: AccuracyRecord | None = None
    reasons: dict[str, str] = Field(default_factory=dict)
    remarks: list[str] = Field(default_factory=list)


class PairResult(Settings):
    """Difference of two engines' maps, each normalised separately. `images`: of the data set, or the one image."""

    first: str
    second: str
    images: int
    over: Literal["image", "data set"]
    mae: float | None
    rmse: float | None
    max: float | None
    reason: str | None = None


class EngineComparison(Settings):
    """`compare_engines.json`. Speed-ups are against the first engine."""

    schema_version: int = COMPARISON_VERSION
    created: str
    command: MaskedArguments = Field(default_factory=list)
    machine: MachineRecord
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    gpu_reason: str | None = None
    """Why there are no GPU figures."""

    settings: CompareSettings
    engines: list[EngineResult]
    pairs: list[PairResult] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
