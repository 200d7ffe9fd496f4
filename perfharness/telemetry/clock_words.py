"""Clock settings in sentences: one line for each step, for each change undone, for what was left behind."""

from __future__ import annotations

from collections.abc import Sequence

from perfharness.model.clocks import ClockStep, Setting
from perfharness.telemetry.clock_settings import BY_NAME, CLOCK_SETTINGS
from perfharness.telemetry.clock_state import ClocksState, StateStore
from perfharness.telemetry.clocks import Restored

RESTORE_COMMAND = "perfharness clocks restore"


def value_in_words(name: Setting, value: Sequence[int] | None) -> str:
    """A value with its unit: `700 W`, `1980 MHz`, `on`."""
    if value is None:
        return "not told"
    if name == "persistence_mode":
        return "on" if value[0] else "off"
    if name == "power_limit_mw":
        return f"{value[0] / 1000:g} W"
    if name == "application_clocks_mhz":
        return f"memory {value[0]} MHz, graphics {value[1]} MHz"
    return f"{value[0]} MHz" if value[0] == value[-1] else f"{value[0]} to {value[-1]} MHz"


def steps_in_words(steps: Sequence[ClockStep]) -> list[tuple[ClockStep, str]]:
    """A line for each step; a GPU whose steps were all refused for one reason has one line."""
    lines = []
    told: set[str] = set()
    for step in steps:
        of_gpu = [other for other in steps if other.gpu_uuid == step.gpu_uuid]
        alike = {(other.answer, other.reason) for other in of_gpu}
        if step.answer == "refused" and len(alike) == 1 and len(of_gpu) == len(CLOCK_SETTINGS):
            if step.gpu_uuid not in told:
                lines.append((step, f"GPU {step.gpu_uuid}: clocks not changed: {step.reason}"))
            told.add(step.gpu_uuid)
        else:
            lines.append((step, _step_in_words(step)))
    return lines


def _step_in_words(step: ClockStep) -> str:
    what = f"GPU {step.gpu_uuid}: {BY_NAME[step.setting].title}"
    return {
        "set": f"{what} set to {value_in_words(step.setting, step.after or step.wanted)}"
        + (f" (was {value_in_words(step.setting, step.before)})" if step.before else ""),
        "already": f"{what}: {value_in_words(step.setting, step.before)} already",
        "absent": f"{what}: this card has none",
        "not_tried": f"{what} not tried",
        "refused": f"{what} not changed: {step.reason}",
    }[step.answer]


def restored_in_words(item: Restored) -> str:
    """One line for one change that was undone, or could not be."""
    what = f"GPU {item.gpu_uuid}: {BY_NAME[item.setting].title}"
    back = value_in_words(item.setting, item.before) if item.before else "released"
    return {
        "restored": f"{what} restored: {back}",
        "nothing_to_do": f"{what}: {back} already",
        "left_to_others": f"{what} left as it is: others still want it",
        "changed_by_others": f"{what} left as it is: somebody else has changed it since",
        "gone_with_restart": f"{what}: the machine was restarted since, which has undone it",
        "failed": f"{what} could not be restored: {item.reason}",
    }[item.outcome]


def left_behind_in_words(store: StateStore, state: ClocksState) -> str | None:
    """What a run that was killed has left, in one line; None where nothing is left."""
    changes = state.left_behind
    if not changes:
        return None
    gpus = sorted({change.gpu_uuid for change in changes})
    which = f"GPU {gpus[0]}" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    settings = ", ".join(dict.fromkeys(BY_NAME[change.setting].title for change in changes))
    if not state.is_of_this_boot:
        return (
            f"a run before the machine's restart had changed the clocks of {which}; the restart has undone it; "
            f"`{RESTORE_COMMAND}` forgets it ({store.path})"
        )
    what = f"a run that was killed may have left {which} changed ({settings})"
    return f"{what}; `{RESTORE_COMMAND}` brings back what was before"
