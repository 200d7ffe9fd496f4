"""What limits a stage: the fourteen causes, and what is reported of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from perfharness.model.activity import Activity
from perfharness.model.diagnosis import Path, WarmupDiagnosis, rounded
from perfharness.model.findings import Finding


class Code(str, Enum):
    """What limits a stage."""

    COMPILATION = "compilation"
    GPU_BOUND = "gpu-bound"
    SMALL_COPIES = "small-copies"
    COPY_BOUND = "copy-bound"
    GARBAGE_COLLECTION = "garbage-collection"
    GIL_CONTENTION = "gil-contention"
    CPU_CONTENTION = "cpu-contention"
    DATA_LOADER = "data-loader"
    WAITING = "waiting"
    ALLOCATOR_CHURN = "allocator-churn"
    SYNCHRONIZATION = "synchronization"
    LAUNCH_BOUND = "launch-bound"
    CPU_BOUND = "cpu-bound"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Place:
    """A function of the user's own code, and its line that takes most of its time.

    Shares are of the stage's time; both hold the time of the libraries that are called there.
    """

    function: str
    file: str
    line: int
    function_share: float
    line_share: float


@dataclass(frozen=True)
class Cause:
    """A cause of a stage's time.

    `share` is of the stage's time, `saves_ms` what mending it saves per batch at most (None: not known). `detail` is
    the GPU's limit of `gpu-bound`, and what `waiting` is for. `place` is where in the code, None: not known.
    """

    code: Code
    share: float
    saves_ms: float | None
    what: str
    step: str
    least: float
    """The share that makes it the verdict."""
    place: Place | None = None
    detail: str | None = None


@dataclass(frozen=True)
class StageCauses:
    """Why a stage takes its time. `causes[0]` is the verdict; there is always one.

    `wall_ms` is per batch and of the measured pass, over all batches. `activities` are shares of the stage's time in
    the profiling pass, or with one pass in that one, `samples` how many they rest on. `slowdown`: the stage's time in
    the profiling pass by that in the measured pass, None with one pass. `is_changed`: its part of the batch is another
    one there.
    """

    path: Path
    batches: int
    wall_ms: float
    gpu_busy_ms: float | None
    activities: Mapping[Activity, float]
    samples: int
    causes: list[Cause]
    slowdown: float | None = None
    is_changed: bool = False

    @property
    def verdict(self) -> Cause:
        """What limits it."""
        return self.causes[0]


@dataclass(frozen=True)
class Causes:
    """The diagnosis of one process."""

    stages: list[StageCauses]
    warmup: list[WarmupDiagnosis]
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        stages = [
            {**rounded(asdict(one)), "activities": {key.value: value for key, value in one.activities.items()}}
            for one in self.stages
        ]
        return {
            "unit": "milliseconds",
            "stages": stages,
            "warmup": rounded([asdict(one) for one in self.warmup]),
            "findings": [one.to_json() for one in self.findings],
        }
