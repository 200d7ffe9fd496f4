"""What else went on on the machine during a launch, as it stands in `manifest.json` under `companions.yardstick`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

YARDSTICK_COMPANION = "yardstick"
"""Its name among the companions of a manifest."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class LoopTime(_Model):
    """A fixed loop of Python, timed while no measured process ran; per turn."""

    turns: int
    wall_ms: float
    """Mean without the slowest tenth: longer where the CPU is slower, or has others to serve all the time."""

    cpu_ms: float
    """Mean of the CPU time: longer where the CPU is slower only."""

    min_ms: float


class OtherProcess(_Model):
    """A process that is not of the launch."""

    pid: int
    name: str
    cpu_s: float


class Yardstick(_Model):
    """Of one launch; its window is from before the first process to after the last. What is not known is None, with the
    reason.
    """

    window_s: float
    cpus: int
    """That the launch might use."""

    own_cpu_s: float | None = None
    """CPU time of the launch: processes, tracers, sampler, launcher."""

    others_cpus: float | None = None
    """How many of these CPUs others kept busy, on average."""

    others_reason: str | None = None
    others: list[OtherProcess] = Field(default_factory=list)
    """Those that took most of it and were there before and after; in a container only its own are seen."""

    steal_share: float | None = None
    """Part of the CPU time that a hypervisor gave to others."""

    steal_reason: str | None = None
    pressure_share: float | None = None
    """Part of the window in which a task of the machine waited for a CPU, this launch's included (PSI, `some`)."""

    pressure_reason: str | None = None
    runnable_before: int | None = None
    """Tasks of the machine that ran or wanted to, just before the first process, without the launcher."""

    loop_before: LoopTime
    loop_after: LoopTime


def yardstick_of(companions: dict[str, dict[str, Any]]) -> Yardstick | None:
    """The yardstick of a run from its manifest's companions; None where there is none, or it cannot be read."""
    try:
        return Yardstick.model_validate(companions.get(YARDSTICK_COMPANION))
    except ValidationError:
        return None
