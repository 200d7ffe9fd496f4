"""The five settings of a GPU that decide its clocks: how each is read, set and undone, and what its maximum is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfharness.model.clocks import Setting
from perfharness.telemetry.nvml import Answer, Device

Value = list[int]


@dataclass(frozen=True)
class ClockSetting:
    """One setting; every answer's value is a list of numbers, as in `model.clocks`.

    Args:
        read: None where NVML has no call for it: nothing tells whether clocks are locked.
        maximum: what it is to be set to.
        clear: undoes a lock; None where the value from before is set instead.
        title: in words.
    """

    name: Setting
    title: str
    read: Callable[[Device], Answer] | None
    maximum: Callable[[Device], Answer]
    put: Callable[[Device, Sequence[int]], Answer]
    clear: Callable[[Device], Answer] | None = None


def _one(answer: Answer) -> Answer:
    return Answer([int(answer.value)]) if answer.ok else answer


def _both(first: Answer, second: Answer) -> Answer:
    for answer in (first, second):
        if not answer.ok:
            return answer
    return Answer([int(first.value), int(second.value)])


def _persistence(device: Device) -> Answer:
    return _one(device.ask("nvmlDeviceGetPersistenceMode"))


def _set_persistence(device: Device, value: Sequence[int]) -> Answer:
    return device.ask("nvmlDeviceSetPersistenceMode", value[0])


def _power_limit(device: Device) -> Answer:
    return _one(device.ask("nvmlDeviceGetPowerManagementLimit"))


def _largest_power_limit(device: Device) -> Answer:
    limits = device.ask("nvmlDeviceGetPowerManagementLimitConstraints")
    return Answer([int(limits.value[1])]) if limits.ok else limits


def _set_power_limit(device: Device, value: Sequence[int]) -> Answer:
    return device.ask("nvmlDeviceSetPowerManagementLimit", value[0])


def _application_clocks(device: Device) -> Answer:
    nvml = device.nvml
    return _both(
        device.ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_MEM),
        device.ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
    )


def _largest_application_clocks(device: Device) -> Answer:
    """The fastest pair that the card lists: not every graphics clock goes with every memory clock."""
    memory = device.ask("nvmlDeviceGetSupportedMemoryClocks")
    if not memory.ok or not memory.value:
        return _both(_largest_memory_clock(device), _largest_graphics_clock(device))
    fastest = max(map(int, memory.value))
    graphics = device.ask("nvmlDeviceGetSupportedGraphicsClocks", fastest)
    return Answer([fastest, max(map(int, graphics.value))]) if graphics.ok else graphics


def _set_application_clocks(device: Device, value: Sequence[int]) -> Answer:
    return device.ask("nvmlDeviceSetApplicationsClocks", *value)


def _largest_memory_clock(device: Device) -> Answer:
    return device.ask("nvmlDeviceGetMaxClockInfo", device.nvml.NVML_CLOCK_MEM)


def _largest_graphics_clock(device: Device) -> Answer:
    return device.ask("nvmlDeviceGetMaxClockInfo", device.nvml.NVML_CLOCK_GRAPHICS)


def _memory_lock(device: Device) -> Answer:
    clock = _largest_memory_clock(device)
    return _both(clock, clock)


def _graphics_lock(device: Device) -> Answer:
    clock = _largest_graphics_clock(device)
    return _both(clock, clock)


def _lock_memory(device: Device, value: Sequence[int]) -> Answer:
    return device.ask("nvmlDeviceSetMemoryLockedClocks", *value)


def _unlock_memory(device: Device) -> Answer:
    return device.ask("nvmlDeviceResetMemoryLockedClocks")


def _lock_graphics(device: Device, value: Sequence[int]) -> Answer:
    return device.ask("nvmlDeviceSetGpuLockedClocks", *value)


def _unlock_graphics(device: Device) -> Answer:
    return device.ask("nvmlDeviceResetGpuLockedClocks")


CLOCK_SETTINGS = (
    ClockSetting("persistence_mode", "persistence mode", _persistence, lambda _: Answer([1]), _set_persistence),
    ClockSetting("power_limit_mw", "power limit", _power_limit, _largest_power_limit, _set_power_limit),
    ClockSetting(
        "application_clocks_mhz",
        "application clocks",
        _application_clocks,
        _largest_application_clocks,
        _set_application_clocks,
    ),
    ClockSetting("memory_clock_lock_mhz", "memory clock lock", None, _memory_lock, _lock_memory, _unlock_memory),
    ClockSetting(
        "graphics_clock_lock_mhz", "graphics clock lock", None, _graphics_lock, _lock_graphics, _unlock_graphics
    ),
)
"""In the order in which they are set: without persistence mode, the driver forgets the others when nobody uses it."""

BY_NAME = {setting.name: setting for setting in CLOCK_SETTINGS}
