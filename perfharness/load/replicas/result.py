"""`replicas.json`: the same load on several numbers of replicas. Validated, for it is read back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perfharness.analysis.load.choice import Standing
from perfharness.model.checks import MaskedArguments
from perfharness.model.load import TargetRecord
from perfharness.model.manifest import FindingRecord
from perfharness.runs.series.repeat_file import OverLaunches, RepeatRequest

REPLICAS_NAME = "replicas.json"
REPLICAS_VERSION = 1

Sharing = Literal["plain", "mps", "mig"]
"""How replicas share a GPU: in turns, through MPS, or each on a MIG instance of its own."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ReplicaCase(_Model):
    """One number of replicas that share a GPU in one way."""

    name: str
    """`SHARING_REPLICAS`, and the folder of its launches, next to this file."""

    sharing: Sharing
    replicas: int
    """On each GPU; of MIG, on as many instances."""

    processes: int
    gpus: list[str] = Field(default_factory=list)
    """UUIDs; empty: on the CPU."""

    launches: list[str] = Field(default_factory=list)
    """Folders of those whose figures count, in their order."""

    left_out: list[str] = Field(default_factory=list)
    """Why the other launches do not count."""

    figures: dict[str, OverLaunches] = Field(default_factory=dict)
    """Over launches: `answers_per_second` (without error), `items_per_second`, `goodput`, `p50_ms`, `p99_ms`,
    `error_share`, `gpu_busy_share`, and of a replica, the largest during a launch, `gpu_memory_mb` and `memory_mb`."""

    standing: Standing
    """Against the best one: `same` differs by less than 5 % for certain, `worse` is worse for certain."""

    judged_by: str
    """The figure that `ratio` is of."""

    ratio: float | None = None
    """To the best one's figure."""

    low: float | None = None
    high: float | None = None
    """The 95 % interval of `ratio`, over launches."""

    launches_needed: int | None = None
    """Of each case, which would probably tell it from the best one."""

    reason: str | None = None


class Replicas(_Model):
    """The file."""

    schema_version: int = REPLICAS_VERSION
    created: str
    """UTC, ISO 8601."""

    command: MaskedArguments
    target: TargetRecord
    profile: dict[str, Any]
    """The load, the same for all cases; users of a closed loop are those of all replicas together."""

    asked: RepeatRequest
    order: list[str]
    """Folders of all launches, as they were planned."""

    judged_by: str
    """The figure that the choice rests on: `goodput` with an objective; else of a closed loop `answers_per_second`, of
    an open loop the latency of those that keep up."""

    cases: list[ReplicaCase]
    best: str | None
    """The case with the best figure; null: nothing was measured."""

    chosen: str | None
    """The case to take: the one with the fewest replicas of those that are as good as the best."""

    proven: bool
    """Whether every other case is proven to be worse, or as good and dearer."""

    reason: str
    findings: list[FindingRecord] = Field(default_factory=list)

    def case(self, name: str) -> ReplicaCase:
        """By its name. Raises `KeyError`."""
        found = {one.name: one for one in self.cases}
        return found[name]
