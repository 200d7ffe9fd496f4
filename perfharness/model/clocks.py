"""What was asked of the GPUs' clocks, and what came of it: `companions["clocks"]` of a manifest.

All clocks in MHz, power limits in mW. A value is a list, for application clocks are a pair (memory, graphics) and locks
are (least, most); the others have one element.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from perfharness.model.base import Record

CLOCKS_COMPANION = "clocks"

Setting = Literal[
    "persistence_mode", "power_limit_mw", "application_clocks_mhz", "memory_clock_lock_mhz", "graphics_clock_lock_mhz"
]
"""In the order in which they are set; they are restored in the reverse order."""

StepAnswer = Literal["set", "already", "refused", "absent", "not_tried"]
"""`already`: it was so before; `absent`: this card has no such setting any more."""

Outcome = Literal["restored", "failed"]


class ClockStep(Record):
    """One setting of one GPU: what was asked, what was answered, what was restored afterwards."""

    gpu_uuid: str
    setting: Setting
    answer: StepAnswer
    wanted: list[int] | None = None
    """None where the card does not report its maximum."""

    before: list[int] | None = None
    """None where NVML does not report it; it never reports locks."""

    after: list[int] | None = None
    """As read back after it was set; None for locks."""

    reason: str | None = None
    """Why it was refused."""

    restored: Outcome | None = None
    restored_reason: str | None = None


class ClocksRecord(Record):
    """The clocks of one launch."""

    steps: list[ClockStep] = Field(default_factory=list)

    def _locked(self, gpu_uuid: str, setting: Setting) -> int | None:
        """Set, or held already: asked for either way."""
        for step in self.steps:
            if step.gpu_uuid == gpu_uuid and step.setting == setting and step.answer in ("set", "already"):
                return step.wanted[-1] if step.wanted else None
        return None

    def requested_graphics_mhz(self, gpu_uuid: str) -> int | None:
        """The graphics (SM) clock that this GPU was locked to; None where the lock was refused or not asked for.

        Args:
            gpu_uuid: of the whole GPU; the clocks of a GPU with MIG instances are not changed.
        """
        return self._locked(gpu_uuid, "graphics_clock_lock_mhz")

    def requested_memory_mhz(self, gpu_uuid: str) -> int | None:
        """The memory clock that this GPU was locked to; as above."""
        return self._locked(gpu_uuid, "memory_clock_lock_mhz")


def clocks_of(companions: dict[str, dict[str, Any]]) -> ClocksRecord | None:
    """The clocks of a run from its manifest's companions; None where they were left as they were, or not readable."""
    try:
        return ClocksRecord.model_validate(companions.get(CLOCKS_COMPANION))
    except ValidationError:
        return None
