"""Hold GPU clocks at their maximum, restore them, and reset them to the driver's defaults.

Previous values are only in memory, so SIGKILL leaves the settings: `settings_left` detects them, and `restore_defaults`
resets them. NVML does not report locks, so an earlier lock is released, not restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from perfharness.model.conditions import ClockStep, Setting
from perfharness.model.machines import gpu_name
from perfharness.telemetry.nvml import Answer, Device, Nvml, Refusal

MIG_REASON = "the clocks belong to the whole GPU, whose MIG instances may be used by others"
RESTORE_COMMAND = "perfharness clocks restore"
AWAKE_S, POLL_S = 4.0, 0.25
"""Time in which clocks fall after a GPU's last work; more than one second on an H200."""


class ClockSetting(NamedTuple):
    """A clock setting. Values of answers are lists of numbers, as in `ClockStep`.

    Args:
        put, reset_by: functions that set and (if any) reset it.
    """

    name: Setting
    title: str
    put: str
    reset_by: str = ""

    def read(self, device: Device) -> Answer:
        """Current value; None for locks, which NVML cannot query."""
        if self.name == "persistence_mode":
            return _numbers(device.ask("nvmlDeviceGetPersistenceMode"))
        if self.name == "power_limit_mw":
            return _numbers(device.ask("nvmlDeviceGetPowerManagementLimit"))
        if self.name == "application_clocks_mhz":
            return _both_clocks(device, "nvmlDeviceGetApplicationsClock")
        return Answer()

    def maximum(self, device: Device) -> Answer:
        """Value for the fastest GPU."""
        if self.name == "persistence_mode":
            return Answer([1])
        if self.name == "power_limit_mw":
            limits = device.ask("nvmlDeviceGetPowerManagementLimitConstraints")
            return Answer([int(limits.value[1])]) if limits.ok else limits
        if self.name == "application_clocks_mhz":
            return _fastest_pair(device)
        largest = _both_clocks(device, "nvmlDeviceGetMaxClockInfo")
        return Answer([largest.value[self.name == "graphics_clock_lock_mhz"]] * 2) if largest.ok else largest

    def reset(self, device: Device) -> Answer | None:
        """Set the driver's default; None for persistence mode, which stays, because many machines have it on."""
        if self.name == "power_limit_mw":
            default = device.ask("nvmlDeviceGetPowerManagementDefaultLimit")
            return device.ask(self.put, default.value) if default.ok else default
        return device.ask(self.reset_by) if self.reset_by else None


CLOCK_SETTINGS = (
    ClockSetting("persistence_mode", "persistence mode", "nvmlDeviceSetPersistenceMode"),
    ClockSetting("power_limit_mw", "power limit", "nvmlDeviceSetPowerManagementLimit"),
    ClockSetting(
        "application_clocks_mhz",
        "application clocks",
        "nvmlDeviceSetApplicationsClocks",
        "nvmlDeviceResetApplicationsClocks",
    ),
    ClockSetting(
        "memory_clock_lock_mhz",
        "memory clock lock",
        "nvmlDeviceSetMemoryLockedClocks",
        "nvmlDeviceResetMemoryLockedClocks",
    ),
    ClockSetting(
        "graphics_clock_lock_mhz",
        "graphics clock lock",
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
    ),
)
"""In the order of setting: without persistence mode, the driver forgets the others while the GPU is unused."""

BY_NAME = {setting.name: setting for setting in CLOCK_SETTINGS}


def _numbers(*answers: Answer) -> Answer:
    refused = next((answer for answer in answers if not answer.ok), None)
    return refused or Answer([int(answer.value) for answer in answers])


def _both_clocks(device: Device, function: str) -> Answer:
    """Memory and graphics clock."""
    kinds = device.nvml.NVML_CLOCK_MEM, device.nvml.NVML_CLOCK_GRAPHICS
    return _numbers(*(device.ask(function, kind) for kind in kinds))


def _fastest_pair(device: Device) -> Answer:
    """Fastest pair that the card lists, because not all graphics clocks go with all memory clocks."""
    memory = device.ask("nvmlDeviceGetSupportedMemoryClocks")
    if not memory.ok or not memory.value:
        return _both_clocks(device, "nvmlDeviceGetMaxClockInfo")
    fastest = max(map(int, memory.value))
    graphics = device.ask("nvmlDeviceGetSupportedGraphicsClocks", fastest)
    return Answer([fastest, max(map(int, graphics.value))]) if graphics.ok else graphics


@contextmanager
def maximum_clocks(
    nvml: Nvml, gpu_uuids: Sequence[str], interrupted: Callable[[], bool] = lambda: False
) -> Iterator[list[ClockStep]]:
    """Hold the clocks of GPUs at their maximum while the block runs, then restore the previous values.

    Yields the result of each step; results of restoring are added at the end. Once interrupted, further steps are
    skipped.
    """
    steps: list[ClockStep] = []
    try:
        maximize(nvml, gpu_uuids, steps, interrupted)
        yield steps
    finally:
        restore(nvml, steps)


def maximize(
    nvml: Nvml, gpu_uuids: Sequence[str], steps: list[ClockStep], interrupted: Callable[[], bool] = lambda: False
) -> None:
    """Set the clocks of GPUs to their maximum; each step is appended to `steps` before it is done."""
    for uuid in gpu_uuids:
        device = nvml.device(uuid)
        for setting in CLOCK_SETTINGS:
            if device is None or device.is_mig or device.is_mig_parent:
                reason = MIG_REASON if device else nvml.opened.reason or "the GPU was not found"
                steps.append(ClockStep(gpu_uuid=uuid, setting=setting.name, answer="refused", reason=reason))
            else:
                _maximize(device, setting, steps, interrupted)


def _maximize(device: Device, setting: ClockSetting, steps: list[ClockStep], interrupted: Callable[[], bool]) -> None:
    before = setting.read(device)
    wanted = setting.maximum(device) if before.ok else before
    step = ClockStep(gpu_uuid=device.uuid, setting=setting.name, answer="set", before=before.value, wanted=wanted.value)
    steps.append(step)  # assumed set until known otherwise, so that it is always restored
    answer = wanted
    if wanted.ok and before.value == wanted.value:
        update = {"answer": "already", "after": before.value}
    elif wanted.ok and interrupted():
        update = {"answer": "not_tried"}
    elif wanted.ok and (answer := device.ask(setting.put, *wanted.value)).ok:
        update = {"after": setting.read(device).value}
    else:  # newer cards have no application clocks, which is not a refusal
        is_absent = setting.name == "application_clocks_mhz" and answer.refusal is Refusal.NOT_SUPPORTED
        update = {"answer": "absent" if is_absent else "refused", "reason": answer.reason}
    steps[-1] = step.model_copy(update=update)


def restore(nvml: Nvml, steps: list[ClockStep]) -> None:
    """Restore previous values in reverse order, continuing after failures; results are added to the steps."""
    for place, step in reversed(list(enumerate(steps))):
        if step.answer == "set":
            device, setting = nvml.device(step.gpu_uuid), BY_NAME[step.setting]
            reason: str | None = "the GPU was lost"
            try:
                if device is not None:
                    answer = device.ask(setting.put, *step.before) if step.before else setting.reset(device)
                    reason = answer.reason if answer else None
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            outcome = "restored" if reason is None else "failed"
            steps[place] = step.model_copy(update={"restored": outcome, "restored_reason": reason})


def restore_defaults(gpus: Sequence[Device]) -> list[ClockStep]:
    """Release locks, and reset power limit and application clocks to the driver's defaults; return the steps."""
    steps = []
    for device in gpus:
        for setting in reversed(CLOCK_SETTINGS):
            answer = setting.reset(device)
            if answer is not None and answer.refusal is not Refusal.NOT_SUPPORTED:
                step = ClockStep(gpu_uuid=device.uuid, setting=setting.name, answer="not_tried")
                update = {"restored": "restored" if answer.ok else "failed", "restored_reason": answer.reason}
                steps.append(step.model_copy(update=update))
    return steps


def settings_left(device: Device) -> list[str]:
    """Settings of a GPU that look left over by a killed launch or another program; takes up to 4 s."""
    found, power = [], BY_NAME["power_limit_mw"]
    default = device.ask("nvmlDeviceGetPowerManagementDefaultLimit")
    limit, largest = power.read(device), power.maximum(device)
    if default.ok and limit.ok and largest.value == limit.value != [default.value]:
        found.append(f"power limit {value_text(power.name, limit.value)}")
    deadline = time.monotonic() + AWAKE_S
    while (locked := _is_locked(device)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return [*found, "graphics clock at its maximum while the GPU is idle"] if locked else found


def _is_locked(device: Device) -> bool:
    """Whether the graphics clock is at its maximum on an idle GPU."""
    kind = device.nvml.NVML_CLOCK_GRAPHICS
    now, most = device.ask("nvmlDeviceGetClockInfo", kind), device.ask("nvmlDeviceGetMaxClockInfo", kind)
    use, users = device.ask("nvmlDeviceGetUtilizationRates"), device.ask("nvmlDeviceGetComputeRunningProcesses")
    is_idle = use.ok and use.value.gpu == 0 and users.ok and not users.value
    return is_idle and now.ok and most.ok and bool(now.value >= most.value)


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


def step_lines(steps: Sequence[ClockStep], titles: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Describe each step in a line, or all steps of a GPU that were refused for one reason; `titles` by UUID."""
    lines = []
    for step in steps:
        gpu = titles.get(step.gpu_uuid) or gpu_name(None, step.gpu_uuid)
        of_gpu = [other for other in steps if other.gpu_uuid == step.gpu_uuid]
        same = {(other.answer, other.reason) for other in of_gpu}
        if step.answer == "refused" and len(same) == 1 and len(of_gpu) == len(CLOCK_SETTINGS):
            lines.append(f"{gpu}: clocks not changed: {step.reason}")
        else:
            lines.append(_step_line(step, gpu))
    return list(dict.fromkeys(lines))


def _step_line(step: ClockStep, gpu: str) -> str:
    what = f"{gpu}: {BY_NAME[step.setting].title}"
    if step.restored == "failed":
        return f"{what} not restored: {step.restored_reason}"
    if step.restored == "restored":
        return f"{what} restored" + (f": {value_text(step.setting, step.before)}" if step.before else "")
    was = f" (was {value_text(step.setting, step.before)})" if step.before else ""
    return {
        "set": f"{what} set to {value_text(step.setting, step.after or step.wanted)}{was}",
        "already": f"{what}: {value_text(step.setting, step.before or step.wanted)} already",
        "absent": f"{what}: this card has none",
        "not_tried": f"{what} not tried",
        "refused": f"{what} not changed: {step.reason}",
    }[step.answer]
