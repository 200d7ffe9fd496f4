"""Comparison of ranks: `ranks` in benchmark_mean.json. Times are milliseconds per batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from perfharness.model.result import Path
from perfharness.model.rounding import rounded

Parallel = Literal["data", "model"]
"""Ranks with items of their own, or sharing the same ones (tensor or pipeline parallel)."""

Basis = Literal["option", "annotation", "recognized", "different_batches", "no_collectives"]


@dataclass(frozen=True)
class RankFigures:
    """One rank: means over the batches that all ranks have, without warm-up. None with the group's reason."""

    process: str
    rank: int
    batch_ms: float  # from the start of a batch to the start of the next
    collectives: float
    communication_ms: float  # with a collective, or a message between two ranks, in progress
    communication_share: float
    waiting_ms: float | None  # part of it until the last rank arrived
    transfer_ms: float | None  # rest of it
    other_ms: float  # rest of the batch
    judged_share: float | None  # share of the communication covered by `waiting_ms`
    last_share: float | None
    """Share of awaited collectives in which this rank came last by more than the clocks' error."""
    lag_ms: float | None
    """Arrival after the mean of the others, summed over the batch's collectives; negative if earlier."""


@dataclass(frozen=True)
class StageWaiting:
    """Collectives of one rank called in one stage; `path` is the stage around the call."""

    process: str
    path: Path
    operations: list[str]
    collectives: float
    communication_ms: float
    waiting_ms: float | None


@dataclass(frozen=True)
class CallWait:
    """How long a process waits for a late rank in collectives; `path`: of the innermost range around their calls."""

    process: str
    path: Path
    waiting_ms: float


@dataclass(frozen=True)
class RankDelay:
    """A rank that the others wait for, batch after batch, at collectives of one stage."""

    rank: int
    process: str
    at_stage: Path  # of the collectives
    operation: str
    batches: int
    lag_ms: float  # arrival after the mean of the others, mean over batches
    late_share: float  # of the batches
    waiting_ms: float  # mean of the others
    waiting_by_process: dict[str, float]
    calls: list[CallWait]  # where they wait
    saves_ms: float  # how much earlier the collectives had begun if it had come as the second last did
    batch_share: float  # `waiting_ms` by the time from batch to batch
    stage: Path | None  # where it spent the time that the others did not; None with the reason
    basis: Literal["host", "gpu"] | None  # on the host, or in GPU work that the stage started
    between_batches: bool  # the stage lies around the batches, or is none
    excess_ms: float | None  # extra time of `stage`
    reason: str | None


@dataclass(frozen=True)
class ArrivalSkew:
    """Time from the first to the last arrival at a collective, over all judged ones."""

    collectives: int
    p50_ms: float
    p95_ms: float | None
    max_ms: float
    clock_error_ms: float  # sum of two clocks


@dataclass(frozen=True)
class RankGroup:
    """Ranks that work together."""

    processes: list[str]
    world_size: int | None
    source: Literal["gpu", "host"] | None  # where their collectives were recorded; None with the reason
    parallel: Parallel | None
    parallel_basis: Basis | None
    parallel_reason: str | None
    batches: int
    ranks: list[RankFigures]
    stages: list[StageWaiting]
    delays: list[RankDelay]
    skew: ArrivalSkew | None
    unmatched: int  # collectives that are not equally often in all ranks
    not_awaited: int  # messages between two ranks, asynchronous calls, early broadcasts
    reason: str | None  # why ranks cannot be compared, or lateness is uncertain


@dataclass(frozen=True)
class RunRanks:
    """The groups of ranks of a run."""

    groups: list[RankGroup]

    def to_json(self) -> dict[str, Any]:
        """The tree for benchmark_mean.json."""
        tree: dict[str, Any] = rounded(asdict(self))
        return {"unit": "milliseconds", **tree}
