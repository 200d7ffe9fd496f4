"""What ranks have to do with each other: `ranks` in benchmark_mean.json. Times are milliseconds per batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from perfharness.model.result import Path
from perfharness.model.rounding import rounded

Parallel = Literal["data", "model"]
"""Ranks with items of their own, or ranks that work on the same ones (tensor or pipeline parallel)."""

Basis = Literal["option", "annotation", "recognized", "different_batches", "no_collectives"]


@dataclass(frozen=True)
class RankFigures:
    """One rank: means over the batches that all ranks have, without warm-up. None with the group's reason."""

    process: str
    rank: int
    batch_ms: float  # from the start of a batch to that of the next
    collectives: float
    communication_ms: float  # a collective, or a message between two ranks, was under way
    communication_share: float
    waiting_ms: float | None  # the part of it until the last rank had come
    transfer_ms: float | None  # the rest of it
    other_ms: float  # the rest of the batch
    judged_share: float | None  # of the communication, that `waiting_ms` is of
    last_share: float | None
    """Collectives in which this rank came last by more than the clocks' error, of those in which all waited."""
    lag_ms: float | None
    """How much later than the mean of the others it came, summed over the batch's collectives; negative: earlier."""


@dataclass(frozen=True)
class StageWaiting:
    """Collectives of one rank that were called in one stage; `path` is that of the stage around the call."""

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
    """A rank for which the others wait, batch after batch, at collectives of one stage."""

    rank: int
    process: str
    at_stage: Path  # of the collectives
    operation: str
    batches: int
    lag_ms: float  # how much later than the mean of the others it came, in the mean over batches
    late_share: float  # of the batches
    waiting_ms: float  # of the others, their mean
    waiting_by_process: dict[str, float]
    calls: list[CallWait]  # where they wait
    saves_ms: float  # how much earlier the collectives had begun if it had come as the second last did
    batch_share: float  # `waiting_ms` by the time from batch to batch
    stage: Path | None  # where it spent the time that the others did not; None with the reason
    basis: Literal["host", "gpu"] | None  # on the host, or in GPU work that the stage started
    between_batches: bool  # the stage lies around the batches, or is none
    excess_ms: float | None  # of `stage`
    reason: str | None


@dataclass(frozen=True)
class ArrivalSkew:
    """From the first to the last arrival at a collective, over all that were judged."""

    collectives: int
    p50_ms: float
    p95_ms: float | None
    max_ms: float
    clock_error_ms: float  # of two clocks together


@dataclass(frozen=True)
class RankGroup:
    """Ranks that work together."""

    processes: list[str]
    world_size: int | None
    source: Literal["gpu", "host"] | None  # where their collectives were seen; None: nowhere, with the reason
    parallel: Parallel | None
    parallel_basis: Basis | None
    parallel_reason: str | None
    batches: int
    ranks: list[RankFigures]
    stages: list[StageWaiting]
    delays: list[RankDelay]
    skew: ArrivalSkew | None
    unmatched: int  # collectives of all ranks that are not in all ranks equally often
    not_awaited: int  # those that did not wait for the last: messages between two, asynchronous, an early broadcast
    reason: str | None  # why ranks cannot be compared, or why it is not certain that one is late


@dataclass(frozen=True)
class RunRanks:
    """The groups of ranks of a run."""

    groups: list[RankGroup]

    def to_json(self) -> dict[str, Any]:
        """As it stands in benchmark_mean.json."""
        tree: dict[str, Any] = rounded(asdict(self))
        return {"unit": "milliseconds", **tree}
