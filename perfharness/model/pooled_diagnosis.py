"""The diagnoses of a run's processes pooled, stage by stage: `diagnosis` in benchmark_mean.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from perfharness.model.diagnosis import Cause, Explained, Path, Verdict, WarmupState, rounded


@dataclass(frozen=True)
class StageOfProcess:
    """The diagnosis of the stage in one process: its verdict with the evidence, and the figures it rests on most."""

    verdict: Verdict
    evidence: list[str]
    next_step: str
    batches: int
    cpu_ms: float | None
    gpu_busy_ms: float | None
    saving_share: float | None
    causes: list[Cause] = field(default_factory=list)
    explained: Explained | None = None
    """None without a profiling pass."""


@dataclass(frozen=True)
class StageTotals:
    """Sums over all batches of all processes without the warm-up. None where one process has none.

    Time of several processes is added up, also where they ran concurrently: `gpu_busy_ms` of two processes on one
    GPU may exceed the time that passed.
    """

    batches: int
    items: int | None
    cpu_ms: float | None
    gpu_busy_ms: float | None
    copy_ms: float | None
    blocking_ms: float | None
    kernels: float | None
    copies: float | None
    copied_bytes: float | None
    graph_launches: float | None
    memsets: float | None
    blocking_calls: float | None


@dataclass(frozen=True)
class StagePerBatch:
    """The totals divided by the batches: means over the batches of all processes, not means of means."""

    cpu_ms: float | None
    gpu_busy_ms: float | None
    copy_ms: float | None
    blocking_ms: float | None
    kernels: float | None
    cpu_ms_per_item: float | None
    gpu_busy_ms_per_item: float | None


@dataclass(frozen=True)
class PooledStage:
    """One stage in every process that has it.

    `verdict` is that of all processes that have one, None where they differ or none has; `agreement` is the share
    of all processes that give the most frequent verdict. `saving_share` is the smallest and the largest of the
    processes' own, None where none is known.
    """

    path: Path
    verdict: Verdict | None
    agreement: float
    verdicts: dict[str, int]
    """How many processes give each verdict."""
    totals: StageTotals
    per_batch: StagePerBatch
    saving_share: tuple[float, float] | None
    processes: dict[str, StageOfProcess]
    absent_in: list[str]
    """Processes whose diagnosis does not know the stage."""


@dataclass(frozen=True)
class PooledWarmup:
    """One loop's warm-up in every process; `needed` is the largest cut that any of them asks for."""

    loop: Path
    states: dict[str, WarmupState]
    warmup_batches: int
    needed: int | None


@dataclass(frozen=True)
class PooledDiagnosis:
    """All processes of a run."""

    processes: list[str]
    stages: list[PooledStage]
    warmup: list[PooledWarmup]
    missing: dict[str, list[str]]
    """What the trace of each process does not hold."""

    def to_json(self) -> dict[str, Any]:
        """As it stands under `diagnosis` in benchmark_mean.json."""
        tree: dict[str, Any] = rounded(asdict(self))
        return {"unit": "milliseconds", **tree}
