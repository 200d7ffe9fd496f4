"""Files of the process of one case: `python -m perfharness.bench.case FOLDER/spec.json`.

- `spec.json` (`CaseSpec`): what to measure;
- `result.json` (`CaseResult`): its phase and the results so far, replaced at every step;
- `iterations.npz`: raw values of the iterations;
- `outputs.npz`: outputs of one round by name, of the pass `outputs`;
- `accuracy.json`, `outputs/SAMPLE.npz`: of the pass `accuracy`; the latter for the baseline only.

Results written before a crash are kept (`perfharness.bench.process.result_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfharness.backends import BackendOptions
from perfharness.bench.accuracy.settings import AccuracyPass
from perfharness.model.base import Settings
from perfharness.model.bench import BenchCase, CaseStatus

CASE_ENTRY = "perfharness.bench.case"
SPEC_NAME = "spec.json"
RESULT_NAME = "result.json"
ITERATIONS_NAME = "iterations.npz"
OUTPUTS_NAME = "outputs.npz"
OUTPUTS_FOLDER = "outputs"

Pass = Literal["latency", "telemetry", "layers", "outputs"]
"""Optional passes after start-up, in the order in which they run; `CaseSpec.accuracy` adds the last one."""

BATCH = "batch"
"""Name of the dimension for the batch size."""

EXITS: Mapping[CaseStatus, int] = {"ok": 0, "failed": 1, "unavailable": 10, "out-of-memory": 11, "memory-limit": 12}
"""Exit codes of a case's process, by status."""


class LatencySettings(Settings):
    """How long to measure.

    Args:
        iterations: number of timed iterations; the minimum with `until_stable`.
        until_stable: continue until half the width of the median's 95 % interval is at most `stable_percent` of the
            median and there is no drift, at most for `max_iterations`.
        min_seconds: minimum time of the timed iterations; adds iterations, up to `max_iterations`.
        max_seconds: maximum time of the timed iterations, and of the warm-up.
        device_iterations: maximum iterations of the pass with device events; None: `iterations`.
    """

    warmup: int = Field(default=50, ge=0)
    iterations: int = Field(default=1000, ge=1)
    until_stable: bool = False
    stable_percent: float = Field(default=1.0, gt=0)
    max_iterations: int = Field(default=100_000, ge=1)
    min_seconds: float = Field(default=0.0, ge=0)
    max_seconds: float = Field(default=120.0, gt=0)
    device_iterations: int | None = Field(default=None, ge=1)


class TelemetrySettings(Settings):
    """The telemetry pass, during which the sampler runs.

    Args:
        seconds: time of work; GPU sensors are updated about every 100 ms.
        gpu_uuids: GPUs of the case; empty on the CPU.
    """

    seconds: float = Field(default=5.0, gt=0)
    interval_ms: float = Field(default=50.0, gt=0)
    idle_seconds: float = Field(default=0.0, ge=0)
    gpu_uuids: tuple[str, ...] = ()


class CaseSpec(Settings):
    """The complete description of one case.

    Args:
        model: the name from the user, for `backends.model_source`.
        inputs: shape of each input: numbers and names of dimensions (`batch` is the case's batch size; other names are
            set in `dimensions`). Other inputs have the model's shape; its first open dimension is the batch.
        input_file: `.npz` with arrays by input name, of one item (no batch dimension) or of the batch; other inputs
            are seeded random values.
        calibration: `.npz` with samples by input name, with which an ONNX model is quantised to int8.
        tokens_per_item, tokens_dimension: the number of tokens, or the dimension that counts them; None: no tokens.
        memory_limit_bytes: limit of the device's memory, or of the host's if the case runs on the CPU.
        file_cache: its state, if the parent knows it.
    """

    case: BenchCase
    model: str
    model_name: str | None = None
    threads: int | None = None
    extra: dict[str, str] = Field(default_factory=dict)
    cache_dir: Path | None = None
    inputs: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)
    dimensions: dict[str, int] = Field(default_factory=dict)
    input_file: Path | None = None
    calibration: Path | None = None
    seed: int = 0
    tokens_per_item: float | None = None
    tokens_dimension: str | None = None
    memory_limit_bytes: int | None = None
    passes: tuple[Pass, ...] = ("latency",)
    latency: LatencySettings = LatencySettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    layer_rounds: int = 20
    accuracy: AccuracyPass | None = None
    file_cache: Literal["cold", "warm", "unknown"] = "unknown"

    @property
    def options(self) -> BackendOptions:
        """How the backend runs the model."""
        return BackendOptions(
            device=self.case.device,
            precision=self.case.precision or "fp32",
            mode=self.case.mode,
            threads=self.threads,
            extra=self.extra,
            cache_dir=self.cache_dir,
            calibration=self.calibration,
        )

    @property
    def tokens(self) -> float | None:
        """Tokens in one item of the batch; None: the case has no tokens."""
        if self.tokens_per_item is not None:
            return self.tokens_per_item
        return None if self.tokens_dimension is None else float(self.dimensions[self.tokens_dimension])
