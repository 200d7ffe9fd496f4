"""What ranks have to do with each other: `ranks` in benchmark_mean.json. Times are milliseconds a batch."""

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
    """One rank, over the batches that all ranks have, without warm-up; a mean over them. None with the group's reason.

    `batch_ms` is from the start of a batch to that of the next. `communication_ms`: how long a collective, or a message
    between two ranks, was under way. `waiting_ms`: the part of it until the last rank had come, of `judged_share` of
    the communication; `transfer_ms` is the rest of it, and `other_ms` that of the batch. `last_share`: of the
    collectives in which all waited for the last, those in which this rank came last, by more than the clocks' error.
    `lag_ms`: how much later than the mean of the others it came, added up over the collectives of a batch; negative
    where it came earlier.
    """

    process: str
    rank: int
    batch_ms: float
    collectives: float
    communication_ms: float
    communication_share: float
    waiting_ms: float | None
    transfer_ms: float | None
    other_ms: float
    judged_share: float | None
    last_share: float | None
    lag_ms: float | None


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
class RankDelay:
    """A rank for which the others wait, batch after batch, at collectives of one stage.

    `at_stage` and `operation` are the collectives', `call` is the path of the range of a call (None: a kernel).
    `lag_ms`: how much later than the mean of the others the rank came, in the mean over batches; `late_share`: part of
    the batches in which it came later. `waiting_ms`: what the others waited for it (their mean; `waiting_by_process`),
    `saves_ms`: how much earlier the collectives had begun if it had come as the second last did. `stage`: where it
    spent the time that the others did not (`excess_ms` of it), on the `host` or in work of the `gpu` that the stage
    started; None with the reason. `between_batches`: the stage lies around the batches, or is none.
    """

    rank: int
    process: str
    at_stage: Path
    operation: str
    call: Path | None
    batches: int
    lag_ms: float
    late_share: float
    waiting_ms: float
    waiting_by_process: dict[str, float]
    saves_ms: float
    batch_share: float
    """`waiting_ms` by the time from batch to batch."""
    stage: Path | None
    basis: Literal["host", "gpu"] | None
    between_batches: bool
    excess_ms: float | None
    reason: str | None


@dataclass(frozen=True)
class ArrivalSkew:
    """From the first to the last arrival at a collective, over all that were judged.

    `clock_error_ms`: of two clocks together.
    """

    collectives: int
    p50_ms: float
    p95_ms: float | None
    max_ms: float
    clock_error_ms: float


@dataclass(frozen=True)
class RankGroup:
    """Ranks that work together. `source`: where their collectives were seen, None: nowhere, with the reason.

    `unmatched` and `not_awaited` count collectives of all ranks that were not judged: not in all ranks equally often,
    and those that did not wait for the last rank (messages between two, asynchronous calls, a broadcast whose root came
    early). `reason`: why ranks cannot be compared, or why it is not certain that one is late.
    """

    processes: list[str]
    world_size: int | None
    source: Literal["gpu", "host"] | None
    parallel: Parallel | None
    parallel_basis: Basis | None
    parallel_reason: str | None
    batches: int
    ranks: list[RankFigures]
    stages: list[StageWaiting]
    delays: list[RankDelay]
    skew: ArrivalSkew | None
    unmatched: int
    not_awaited: int
    reason: str | None


@dataclass(frozen=True)
class RunRanks:
    """The groups of ranks of a run."""

    groups: list[RankGroup]

    def to_json(self) -> dict[str, Any]:
        """As it stands in benchmark_mean.json."""
        tree: dict[str, Any] = rounded(asdict(self))
        return {"unit": "milliseconds", **tree}
