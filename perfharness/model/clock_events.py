"""Why a GPU's clocks are not higher: NVML's reasons by bit, and which of them are throttling.

Names and meanings are those of nvml.h (`nvmlClocksEventReason…`, up to driver 535 `nvmlClocksThrottleReason…`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClockEventReason:
    """One reason.

    Args:
        bit: its value in NVML's mask.
        name: as it stands in the results.
        throttles: whether the clocks are lower than asked for because of it.
        why: why it counts as throttling, or not.
    """

    bit: int
    name: str
    throttles: bool
    why: str


CLOCK_EVENT_REASONS = (
    ClockEventReason(0x1, "gpu_idle", False, "nothing runs, so the clocks fall; no batch is slowed down by it"),
    ClockEventReason(0x2, "applications_clocks_setting", False, "somebody asked for these clocks, perhaps -m did"),
    ClockEventReason(0x4, "sw_power_cap", True, "the power limit is reached, and the driver lowers the clocks"),
    ClockEventReason(
        0x8, "hw_slowdown", True,
        "temperature, external power brake or power draw made the hardware halve the clocks, or more",
    ),
    ClockEventReason(0x10, "sync_boost", True, "another GPU of its boost group is slowed down, and this one with it"),
    ClockEventReason(0x20, "sw_thermal_slowdown", True, "GPU or memory is too hot, and the driver lowers the clocks"),
    ClockEventReason(0x40, "hw_thermal_slowdown", True, "too hot, and the hardware halves the clocks, or more"),
    ClockEventReason(0x80, "hw_power_brake_slowdown", True, "the power supply asks, the hardware halves the clocks"),
    ClockEventReason(0x100, "display_clock_setting", False, "a display's settings ask for these clocks"),
)  # fmt: skip

KNOWN_BITS = sum(reason.bit for reason in CLOCK_EVENT_REASONS)


def reasons_in(mask: int) -> tuple[ClockEventReason, ...]:
    """The reasons in a mask. A bit that is not known yet counts as throttling: something keeps the clocks down."""
    known = tuple(reason for reason in CLOCK_EVENT_REASONS if mask & reason.bit)
    unknown = mask & ~KNOWN_BITS
    if not unknown:
        return known
    return (*known, ClockEventReason(unknown, f"unknown_0x{unknown:x}", True, "a reason that is not known yet"))
