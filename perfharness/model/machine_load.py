"""Load of the machine around a launch, as it stands in `manifest.json` under `companions.yardstick`."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from perfharness.model.base import Record

MACHINE_LOAD = "yardstick"
"""Its name in the manifest."""


class _Model(Record, allow_inf_nan=False):
    """Finite numbers."""


class LoopTime(_Model):
    """The reference loop, timed while no measured process ran; per turn."""

    wall_ms: float
    """Mean without the slowest tenth: longer where the CPU is slower, or has others to serve all the time."""

    cpu_ms: float
    """Mean of the CPU time: longer where the CPU is slower only."""


class MachineLoad(_Model):
    """Before the first process of a launch, and after its last one. What is not known is None."""

    cpus: int
    """That the launch might use."""

    load_before: float | None = None
    load_after: float | None = None
    """Load average of the last minute."""

    pressure_before: float | None = None
    pressure_after: float | None = None
    """Part of the last 10 s in which a task of the machine waited for a CPU (PSI, `some`)."""

    steal_share: float | None = None
    """Part of the CPU time between both that a hypervisor gave to others."""

    steal_reason: str | None = None
    loop_before: LoopTime
    loop_after: LoopTime

    @property
    def loop_ms(self) -> float:
        """Wall time of a turn of the loop, mean of before and after."""
        return (self.loop_before.wall_ms + self.loop_after.wall_ms) / 2


def machine_load_of(companions: dict[str, dict[str, Any]]) -> MachineLoad | None:
    """The load in a manifest's companions; None where there is none, or it cannot be read."""
    try:
        return MachineLoad.model_validate(companions.get(MACHINE_LOAD))
    except ValidationError:
        return None
