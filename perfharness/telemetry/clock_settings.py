"""The five settings of a GPU that decide its clocks: how each is read, set and undone, its maximum, and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfharness.model.clocks import ClockStep, Setting
from perfharness.telemetry.nvml import Answer, Device

Value = list[int]


@dataclass(frozen=True)
class ClockSetting:
    """One setting; every answer's value is a list of numbers, as in `model.clocks`.

    Args:
        read: None where NVML has no call for it: no call reports whether clocks are locked.
        maximum: what it is to be set to.
        clear: undoes a lock; None where the value from before is set instead.
        title: for messages.
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


def _ask_one(device: Device, function: str, *arguments: int) -> Answer:
    return _one(device.ask(function, *arguments))


def _largest_power_limit(device: Device) -> Answer:
    limits = device.ask("nvmlDeviceGetPowerManagementLimitConstraints")
    return Answer([int(limits.value[1])]) if limits.ok else limits


def _application_clocks(device: Device) -> Answer:
    function, nvml = "nvmlDeviceGetApplicationsClock", device.nvml
    return _both(device.ask(function, nvml.NVML_CLOCK_MEM), device.ask(function, nvml.NVML_CLOCK_GRAPHICS))


def _largest_application_clocks(device: Device) -> Answer:
    """The fastest pair that the card lists: not every graphics clock goes with every memory clock."""
    memory = device.ask("nvmlDeviceGetSupportedMemoryClocks")
    if not memory.ok or not memory.value:
        function, nvml = "nvmlDeviceGetMaxClockInfo", device.nvml
        return _both(device.ask(function, nvml.NVML_CLOCK_MEM), device.ask(function, nvml.NVML_CLOCK_GRAPHICS))
    fastest = max(map(int, memory.value))
    graphics = device.ask("nvmlDeviceGetSupportedGraphicsClocks", fastest)
    return Answer([fastest, max(map(int, graphics.value))]) if graphics.ok else graphics


def _largest(clock: str) -> Callable[[Device], Answer]:
    """Least and most of a lock at the largest clock of a kind (`NVML_CLOCK_MEM`)."""

    def largest(device: Device) -> Answer:
        answer = device.ask("nvmlDeviceGetMaxClockInfo", getattr(device.nvml, clock))
        return _both(answer, answer)

    return largest


def _put(function: str) -> Callable[[Device, Sequence[int]], Answer]:
    return lambda device, value: device.ask(function, *value)


CLOCK_SETTINGS = (
    ClockSetting(
        "persistence_mode",
        "persistence mode",
        lambda device: _ask_one(device, "nvmlDeviceGetPersistenceMode"),
        lambda _: Answer([1]),
        _put("nvmlDeviceSetPersistenceMode"),
    ),
    ClockSetting(
        "power_limit_mw",
        "power limit",
        lambda device: _ask_one(device, "nvmlDeviceGetPowerManagementLimit"),
        _largest_power_limit,
        _put("nvmlDeviceSetPowerManagementLimit"),
    ),
    ClockSetting(
        "application_clocks_mhz",
        "application clocks",
        _application_clocks,
        _largest_application_clocks,
        _put("nvmlDeviceSetApplicationsClocks"),
    ),
    ClockSetting(
        "memory_clock_lock_mhz",
        "memory clock lock",
        None,
        _largest("NVML_CLOCK_MEM"),
        _put("nvmlDeviceSetMemoryLockedClocks"),
        lambda device: device.ask("nvmlDeviceResetMemoryLockedClocks"),
    ),
    ClockSetting(
        "graphics_clock_lock_mhz",
        "graphics clock lock",
        None,
        _largest("NVML_CLOCK_GRAPHICS"),
        _put("nvmlDeviceSetGpuLockedClocks"),
        lambda device: device.ask("nvmlDeviceResetGpuLockedClocks"),
    ),
)
"""In the order of setting: without persistence mode, the driver forgets the others when the GPU is unused."""

BY_NAME = {setting.name: setting for setting in CLOCK_SETTINGS}


def value_text(name: Setting, value: Sequence[int] | None) -> str:
    """A value with its unit: `700 W`, `1980 MHz`, `on`."""
    if value is None:
        return "not reported"
    if name == "persistence_mode":
        return "on" if value[0] else "off"
    if name == "power_limit_mw":
        return f"{value[0] / 1000:g} W"
    if name == "application_clocks_mhz":
        return f"memory {value[0]} MHz, graphics {value[1]} MHz"
    return f"{value[0]} MHz" if value[0] == value[-1] else f"{value[0]} to {value[-1]} MHz"


def step_lines(steps: Sequence[ClockStep]) -> list[str]:
    """A line for each step; a GPU whose steps were all refused for one reason has one line."""
    lines = []
    for step in steps:
        of_gpu = [other for other in steps if other.gpu_uuid == step.gpu_uuid]
        same = {(other.answer, other.reason) for other in of_gpu}
        if step.answer == "refused" and len(same) == 1 and len(of_gpu) == len(CLOCK_SETTINGS):
            lines.append(f"GPU {step.gpu_uuid}: clocks not changed: {step.reason}")
        else:
            lines.append(_step_line(step))
    return list(dict.fromkeys(lines))


def refusal_lines(steps: Sequence[ClockStep]) -> list[str]:
    """The lines of the steps that were refused."""
    return step_lines([step for step in steps if step.answer == "refused"])


def _step_line(step: ClockStep) -> str:
    what = f"GPU {step.gpu_uuid}: {BY_NAME[step.setting].title}"
    return {
        "set": f"{what} set to {value_text(step.setting, step.after or step.wanted)}"
        + (f" (was {value_text(step.setting, step.before)})" if step.before else ""),
        "already": f"{what}: {value_text(step.setting, step.before or step.wanted)} already",
        "absent": f"{what}: this card has none",
        "not_tried": f"{what} not tried",
        "refused": f"{what} not changed: {step.reason}",
    }[step.answer]
