"""The conditions of a launch, as they stand under `companions` in `manifest.json`."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from perfharness.model.base import Record

CLOCKS = "clocks"
MACHINE_LOAD = "yardstick"

Setting = Literal[
    "persistence_mode", "power_limit_mw", "application_clocks_mhz", "memory_clock_lock_mhz", "graphics_clock_lock_mhz"
]
"""In the order in which they are set; they are restored in the reverse order."""


class ClockStep(Record):
    """One setting of one GPU: MHz, or mW of the power limit.

    Values are lists: application clocks are (memory, graphics), locks (lowest, highest), others one element.
    """

    gpu_uuid: str
    setting: Setting
    answer: Literal["set", "already", "refused", "absent", "not_tried"]  # `absent`: the card has no such setting
    wanted: list[int] | None = None  # None: the card does not report its maximum
    before: list[int] | None = None  # None: not reported; locks never are
    after: list[int] | None = None  # as read back; None: locks
    reason: str | None = None  # why it was refused
    restored: Literal["restored", "failed"] | None = None
    restored_reason: str | None = None


class ClocksRecord(Record):
    """The clocks of one launch."""

    steps: list[ClockStep] = Field(default_factory=list)

    def requested_mhz(self, gpu_uuid: str, setting: Setting) -> int | None:
        """The clock that a whole GPU is locked to, by this launch or before; None: refused or not asked for."""
        for step in self.steps:
            if step.gpu_uuid == gpu_uuid and step.setting == setting and step.answer in ("set", "already"):
                return step.wanted[-1] if step.wanted else None
        return None


class LoopTime(Record, allow_inf_nan=False):
    """The reference loop, timed while no measured process ran; per turn."""

    wall_ms: float  # mean without the slowest tenth: longer where the CPU is slower or busy
    cpu_ms: float  # mean of the CPU time: longer only where the CPU is slower


class MachineLoad(Record, allow_inf_nan=False):
    """Before the first process of a launch, and after its last one. What is not known is None."""

    cpus: int  # that the launch might use
    load_before: float | None = None  # load average of the last minute
    load_after: float | None = None
    pressure_before: float | None = None  # part of the last 10 s in which a task waited for a CPU (PSI, `some`)
    pressure_after: float | None = None
    steal_share: float | None = None  # part of the CPU time in between that a hypervisor gave to others
    steal_reason: str | None = None
    loop_before: LoopTime
    loop_after: LoopTime

    @property
    def loop_ms(self) -> float:
        """Wall time of a turn of the loop, mean of before and after."""
        return (self.loop_before.wall_ms + self.loop_after.wall_ms) / 2


class GpuWait(Record):
    """The wait for one GPU to cool down; degrees Celsius, None: not read."""

    gpu_uuid: str
    target_c: float
    begin_c: int | None
    end_c: int | None
    waited_s: float  # until it was cool enough, or given up
    reached: bool
    reason: str | None = None  # why its temperature was not read


Condition = TypeVar("Condition", bound=Record)


def condition(companions: dict[str, dict[str, Any]], name: str, kind: type[Condition]) -> Condition | None:
    """One record of a manifest's companions; None where there is none, or it cannot be read."""
    try:
        return kind.model_validate(companions.get(name))
    except ValidationError:
        return None
