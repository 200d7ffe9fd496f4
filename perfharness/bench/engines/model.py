"""Specification and result of one engine's process, and the comparison of all engines."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from perfharness.bench.accuracy.data import PreprocessSettings
from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.bench.spec import CaseSpec
from perfharness.model.base import Settings
from perfharness.model.bench import AccuracyRecord, CaseResult, MachineRecord, TensorSpec
from perfharness.model.checks import MaskedArguments

COMPARISON_NAME = "compare_engines.json"
COMPARISON_VERSION = 2
ENGINE_ENTRY = "perfharness.bench.engines.engine"
IMAGE_FOLDER, MAPS_FOLDER = "image", "maps"
"""Outputs of the image and of the data set, as written by `bench.accuracy.run`."""

PICTURES = ("depth_comparison.png", "speed_benchmark.png", "gpu_utilization.png", "compare_engines.html")
"""Pictures of a comparison, in its folder."""


class CompareSettings(Settings):
    """Settings for all engines.

    Args:
        image: for the picture and the timed rounds.
        truth: of the image.
        metric_images, metric_truth: folders with files matched by name.
        input_size: height and width, if open in the model.
        max_seconds: limit for the timed rounds, and for the warm-up.
        sample_interval_s: of the telemetry pass, which repeats the timed rounds.
        keep_maps: of the data set.
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
    threads: int | None = Field(default=None, ge=1)
    keep_maps: bool = False


class EngineSpec(CaseSpec):
    """One engine: `spec.json` of a case with a batch of one image; without a precision, that of the file."""

    settings: CompareSettings


class MapDifference(Settings):
    """Difference of an engine's map from the first engine's, each normalised separately; None with a reason."""

    mae: float | None = None
    rmse: float | None = None
    max: float | None = None
    reason: str | None = None


class EngineResult(CaseResult):
    """One engine: a case's result, and that of its maps.

    Args:
        engine: the model as named by the user.
        input, output: the image and its map.
        image_accuracy: for the image; `accuracy` is for the data set.
        speedup: over the first engine, from mean latencies.
        telemetry_unix_ns: begin and end of the telemetry pass.
        remarks: caveats.
    """

    engine: str = ""
    input: TensorSpec | None = None
    output: TensorSpec | None = None
    image_accuracy: AccuracyRecord | None = None
    speedup: float | None = None
    difference: MapDifference | None = None
    telemetry_unix_ns: tuple[int, int] | None = None
    remarks: list[str] = Field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the engine in tables, and of its folder."""
        return self.case.case_id


class EngineComparison(Settings):
    """`compare_engines.json`. The first engine is the reference for speed-ups and differences."""

    schema_version: int = COMPARISON_VERSION
    created: str
    command: MaskedArguments = Field(default_factory=list)
    machine: MachineRecord
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    gpu_reason: str | None = None
    settings: CompareSettings
    engines: list[EngineResult]
    remarks: list[str] = Field(default_factory=list)
