"""GPU clocks at their maximum for a while, then as they were before; and back to the driver's defaults.

What was there before is remembered in memory, so nothing restores it after SIGKILL: `settings_left` sees what stays,
and `restore_defaults` resets it. NVML does not report locks: a lock from before is released, not set again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from perfharness.model.clocks import ClockStep, Outcome, Setting
from perfharness.telemetry.nvml import Answer, Device, Nvml, Refusal

MIG_REASON = "the clocks belong to the whole GPU, which is divided into MIG instances that others may be using"
RESTORE_COMMAND = "perfharness clocks restore"
AWAKE_S = 1.0
"""A GPU's clocks fall within this time after its last work."""

Value = list[int]


@dataclass(frozen=True)
class ClockSetting:
    """A setting that decides the clocks; every answer's value is a list of numbers, as in `model.clocks`.

    Args:
        read: None: NVML has no call for it, as for locks.
        maximum: what it is to be set to.
        put: the function that sets it.
        reset: sets the driver's default; returns None where the setting is left as it is.
    """

    name: Setting
    title: str
    read: Callable[[Device], Answer] | None
    maximum: Callable[[Device], Answer]
    put: str
    reset: Callable[[Device], Answer | None]


def _together(*answers: Answer) -> Answer:
    refused = next((answer for answer in answers if not answer.ok), None)
    return refused or Answer([int(answer.value) for answer in answers])


def _ask(function: str, *arguments: int) -> Callable[[Device], Answer]:
    return lambda device: _together(device.ask(function, *arguments))


def _largest_power_limit(device: Device) -> Answer:
    limits = device.ask("nvmlDeviceGetPowerManagementLimitConstraints")
    return Answer([int(limits.value[1])]) if limits.ok else limits


def _default_power_limit(device: Device) -> Answer:
    default = device.ask("nvmlDeviceGetPowerManagementDefaultLimit")
    return device.ask("nvmlDeviceSetPowerManagementLimit", default.value) if default.ok else default


def _clocks(function: str) -> Callable[[Device], Answer]:
    """Memory and graphics clock."""
    return lambda device: _together(
        *(device.ask(function, kind) for kind in (device.nvml.NVML_CLOCK_MEM, device.nvml.NVML_CLOCK_GRAPHICS))
    )


def _fastest_pair(device: Device) -> Answer:
    """The fastest pair that the card lists: not every graphics clock goes with every memory clock."""
    memory = device.ask("nvmlDeviceGetSupportedMemoryClocks")
    if not memory.ok or not memory.value:
        return _clocks("nvmlDeviceGetMaxClockInfo")(device)
    fastest = max(map(int, memory.value))
    graphics = device.ask("nvmlDeviceGetSupportedGraphicsClocks", fastest)
    return Answer([fastest, max(map(int, graphics.value))]) if graphics.ok else graphics


def _largest(place: int) -> Callable[[Device], Answer]:
    """Least and most of a lock at the largest clock of the memory (0) or the multiprocessors (1)."""

    def largest(device: Device) -> Answer:
        both = _clocks("nvmlDeviceGetMaxClockInfo")(device)
        return Answer([both.value[place]] * 2) if both.ok else both

    return largest


CLOCK_SETTINGS = (
    ClockSetting(
        "persistence_mode",
        "persistence mode",
        _ask("nvmlDeviceGetPersistenceMode"),
        lambda _: Answer([1]),
        "nvmlDeviceSetPersistenceMode",
        lambda _: None,  # many machines have it on
    ),
    ClockSetting(
        "power_limit_mw",
        "power limit",
        _ask("nvmlDeviceGetPowerManagementLimit"),
        _largest_power_limit,
        "nvmlDeviceSetPowerManagementLimit",
        _default_power_limit,
    ),
    ClockSetting(
        "application_clocks_mhz",
        "application clocks",
        _clocks("nvmlDeviceGetApplicationsClock"),
        _fastest_pair,
        "nvmlDeviceSetApplicationsClocks",
        lambda device: device.ask("nvmlDeviceResetApplicationsClocks"),
    ),
    ClockSetting(
        "memory_clock_lock_mhz",
        "memory clock lock",
        None,
        _largest(0),
        "nvmlDeviceSetMemoryLockedClocks",
        lambda device: device.ask("nvmlDeviceResetMemoryLockedClocks"),
    ),
    ClockSetting(
        "graphics_clock_lock_mhz",
        "graphics clock lock",
        None,
        _largest(1),
        "nvmlDeviceSetGpuLockedClocks",
        lambda device: device.ask("nvmlDeviceResetGpuLockedClocks"),
    ),
)
"""In the order of setting: without persistence mode, the driver forgets the others when the GPU is unused."""

BY_NAME = {setting.name: setting for setting in CLOCK_SETTINGS}


@contextmanager
def maximum_clocks(
    nvml: Nvml, gpu_uuids: Sequence[str], interrupted: Callable[[], bool] = lambda: False
) -> Iterator[list[ClockStep]]:
    """Hold the clocks of GPUs at their maximum while the block runs, then restore what was there before.

    Args:
        interrupted: asked before each step; once true, the others are not tried.

    Yields:
        Each step's answer; how it was restored is added at the end.
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
    """Set the clocks of GPUs to their maximum; adds each step to `steps` before it is done."""
    for uuid in gpu_uuids:
        device = nvml.device(uuid)
        problem = None
        if device is None:
            problem = nvml.opened.reason or "there is no such GPU"
        elif device.is_mig or device.is_mig_parent:
            problem = MIG_REASON
        for setting in CLOCK_SETTINGS:
            if device is None or problem is not None:
                steps.append(ClockStep(gpu_uuid=uuid, setting=setting.name, answer="refused", reason=problem))
            else:
                _maximize(device, setting, steps, interrupted)


def _maximize(device: Device, setting: ClockSetting, steps: list[ClockStep], interrupted: Callable[[], bool]) -> None:
    before = setting.read(device) if setting.read else Answer()
    wanted = setting.maximum(device) if before.ok else before
    step = ClockStep(gpu_uuid=device.uuid, setting=setting.name, answer="set", before=before.value, wanted=wanted.value)
    steps.append(step)
    if wanted.ok and setting.read and before.value == wanted.value:
        steps[-1] = step.model_copy(update={"answer": "already", "after": before.value})
        return
    if wanted.ok and interrupted():
        steps[-1] = step.model_copy(update={"answer": "not_tried"})
        return
    answer = device.ask(setting.put, *wanted.value) if wanted.ok else wanted
    if answer.ok:
        after = setting.read(device).value if setting.read else None
        steps[-1] = step.model_copy(update={"after": after})
    else:  # newer cards have no application clocks: that is no refusal
        is_absent = setting.name == "application_clocks_mhz" and answer.refusal is Refusal.NOT_SUPPORTED
        update = {"answer": "absent" if is_absent else "refused", "reason": answer.reason}
        steps[-1] = step.model_copy(update=update)


def restore(nvml: Nvml, steps: list[ClockStep]) -> None:
    """Put back what was there before, the last step first, all of them, even if one fails; notes it in the steps."""
    for place, step in reversed(list(enumerate(steps))):
        if step.answer == "set":
            try:
                answer = _put_back(nvml.device(step.gpu_uuid), step)
                reason = answer.reason
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            outcome = "restored" if reason is None else "failed"
            steps[place] = step.model_copy(update={"restored": outcome, "restored_reason": reason})


def _put_back(device: Device | None, step: ClockStep) -> Answer:
    if device is None:
        return Answer(None, Refusal.NOT_FOUND, "the GPU is gone")
    setting = BY_NAME[step.setting]
    if step.before is None:
        return setting.reset(device) or Answer()
    return device.ask(setting.put, *step.before)


def restore_defaults(gpus: Sequence[Device]) -> list[ClockStep]:
    """Release locks, and set power limit and application clocks to the driver's defaults; returns what was done."""
    steps = []
    for device in gpus:
        for setting in reversed(CLOCK_SETTINGS):
            answer = setting.reset(device)
            if answer is not None and answer.refusal is not Refusal.NOT_SUPPORTED:
                outcome: Outcome = "restored" if answer.ok else "failed"
                steps.append(
                    ClockStep(
                        gpu_uuid=device.uuid, setting=setting.name, answer="not_tried", restored=outcome,
                        restored_reason=answer.reason,
                    )
                )  # fmt: skip
    return steps


def settings_left(device: Device) -> list[str]:
    """Settings of a GPU that look like those of a launch that was killed, or of another program; takes up to 1 s."""
    found = []
    default = device.ask("nvmlDeviceGetPowerManagementDefaultLimit")
    limit, largest = device.ask("nvmlDeviceGetPowerManagementLimit"), _largest_power_limit(device)
    if default.ok and limit.ok and largest.value == [limit.value] and limit.value != default.value:
        found.append(f"power limit {value_text('power_limit_mw', [limit.value])}")
    if _is_locked(device):
        time.sleep(AWAKE_S)
        if _is_locked(device):
            found.append("graphics clock at its maximum while the GPU is idle")
    return found


def _is_locked(device: Device) -> bool:
    """Whether the graphics clock is at its maximum although nothing runs."""
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


def _step_line(step: ClockStep) -> str:
    what = f"GPU {step.gpu_uuid}: {BY_NAME[step.setting].title}"
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
