"""Conditions of a launch, under `companions` in `manifest.json`."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from perfharness.model.base import Record

CLOCKS = "clocks"
MACHINE_LOAD = "yardstick"

Setting = Literal[
    "persistence_mode", "power_limit_mw", "application_clocks_mhz", "memory_clock_lock_mhz", "graphics_clock_lock_mhz"
]
"""In the order of setting; restored in reverse."""


class ClockStep(Record):
    """One setting of one GPU: MHz, or mW of the power limit.

    Values are lists: application clocks are (memory, graphics), locks (lowest, highest), others one element.
    """

    gpu_uuid: str
    setting: Setting
    answer: Literal["set", "already", "refused", "absent", "not_tried"]  # `absent`: unsupported by the card
    wanted: list[int] | None = None  # None if the card does not report its maximum
    before: list[int] | None = None  # None if not reported, as for locks
    after: list[int] | None = None  # as read back; None for locks
    reason: str | None = None
    restored: Literal["restored", "failed"] | None = None
    restored_reason: str | None = None


class ClocksRecord(Record):
    """Clocks of one launch."""

    steps: list[ClockStep] = Field(default_factory=list)

    def requested_mhz(self, gpu_uuid: str, setting: Setting) -> int | None:
        """Clock that a whole GPU is locked to, by this launch or before; None if refused or not requested."""
        locked = (one for one in self.steps if (one.gpu_uuid, one.setting) == (gpu_uuid, setting))
        wanted = next((one.wanted for one in locked if one.answer in ("set", "already")), None)
        return wanted[-1] if wanted else None


class LoopTime(Record, allow_inf_nan=False):
    """Times of the reference loop per turn, without measured processes."""

    wall_ms: float  # mean without the slowest tenth; longer on a slower or busy CPU
    cpu_ms: float  # mean CPU time; longer only on a slower CPU


class MachineLoad(Record, allow_inf_nan=False):
    """Load before the first and after the last process of a launch. Unknown values are None."""

    cpus: int  # available to the launch
    load_before: float | None = None  # load average over a minute
    load_after: float | None = None
    pressure_before: float | None = None  # share of the last 10 s in which a task waited for a CPU (PSI, `some`)
    pressure_after: float | None = None
    steal_share: float | None = None  # share of the CPU time that the hypervisor gave to other machines
    steal_reason: str | None = None
    loop_before: LoopTime
    loop_after: LoopTime

    @property
    def loop_ms(self) -> float:
        """Wall time per turn of the loop, mean of before and after."""
        return (self.loop_before.wall_ms + self.loop_after.wall_ms) / 2


class GpuWait(Record):
    """Wait for a GPU to cool down; degrees Celsius, None if not read."""

    gpu_uuid: str
    target_c: float
    begin_c: int | None
    end_c: int | None
    waited_s: float  # until cool enough or given up
    reached: bool
    reason: str | None = None  # why its temperature was not read


Condition = TypeVar("Condition", bound=Record)


def condition(companions: dict[str, dict[str, Any]], name: str, kind: type[Condition]) -> Condition | None:
    """One record of a manifest's companions; None if missing or invalid."""
    try:
        return kind.model_validate(companions.get(name))
    except ValidationError:
        return None
