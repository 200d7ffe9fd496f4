"""The settings of a replayed GPU: the effect of each NVML setter, and the readings that show it.

A setting that the recorded card does not report is refused by its setter too, with the same error. The limits are the
card's own, from the record. Privileges are not modelled: a test of missing ones injects an error at the setter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pynvml

from perfharness.testing.nvml_record import NvmlRecord, RecordedCall
from perfharness.testing.nvml_state import DeviceState, NvmlState
from perfharness.testing.nvml_values import device

GRAPHICS_CLOCKS = (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM)
MEMORY_CLOCK = pynvml.NVML_CLOCK_MEM

Setter = Callable[..., None]


def initial_state(record: NvmlRecord) -> NvmlState:
    """State before any setter: the recorded settings, without locked clocks."""
    uuids = [call.arguments[0]["device"] for call in record.calls if call.function == "nvmlDeviceGetUUID"]
    return NvmlState(devices={uuid: _device_state(record, uuid) for uuid in uuids if not uuid.startswith("MIG")})


def _device_state(record: NvmlRecord, uuid: str) -> DeviceState:
    clocks = [_recorded_value(record, uuid, "nvmlDeviceGetApplicationsClock", kind) for kind in (MEMORY_CLOCK, 0)]
    return DeviceState(
        persistence_mode=_recorded_value(record, uuid, "nvmlDeviceGetPersistenceMode"),
        power_limit_mw=_recorded_value(record, uuid, "nvmlDeviceGetPowerManagementLimit"),
        application_clocks_mhz=None if None in clocks else (clocks[0], clocks[1]),
    )


def _recorded_value(record: NvmlRecord, uuid: str, function: str, *arguments: int) -> Any:
    call = record.call(function, device(uuid), *arguments)
    return None if call is None else call.answers[0].value


def overridden(name: str, arguments: Sequence[Any], value: Any, state: DeviceState) -> Any:
    """A recorded reading after the setters' changes."""
    if name == "nvmlDeviceGetPersistenceMode":
        return state.persistence_mode
    if name in ("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit"):
        return state.power_limit_mw
    if name == "nvmlDeviceGetApplicationsClock" and state.application_clocks_mhz is not None:
        return state.application_clocks_mhz[0 if arguments[0] == MEMORY_CLOCK else 1]
    if name == "nvmlDeviceGetClockInfo":
        return _within(value, _lock(state, arguments[0]))
    if name == "nvmlDeviceGetClock" and arguments[1] == pynvml.NVML_CLOCK_ID_CURRENT:
        return _within(value, _lock(state, arguments[0]))
    return value


def _lock(state: DeviceState, kind: int) -> tuple[int, int] | None:
    if kind in GRAPHICS_CLOCKS:
        return state.locked_graphics_mhz
    return state.locked_memory_mhz if kind == MEMORY_CLOCK else None


def _within(clock_mhz: int, lock: tuple[int, int] | None) -> int:
    return clock_mhz if lock is None else min(max(clock_mhz, lock[0]), lock[1])


def _require(record: NvmlRecord, uuid: str, state: DeviceState | None, function: str, *arguments: int) -> RecordedCall:
    """The reading that goes with a setter; where the card refuses it, the setter raises the same error."""
    if state is None:  # a MIG instance
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    call = record.call(function, device(uuid), *arguments)
    if call is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if call.answers[0].error is not None:
        raise pynvml.NVMLError(call.answers[0].error)
    return call


def _refuse_unless(condition: bool) -> None:
    if not condition:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)


def _set_persistence(record: NvmlRecord, uuid: str, state: DeviceState, mode: int) -> None:
    _require(record, uuid, state, "nvmlDeviceGetPersistenceMode")
    _refuse_unless(mode in (0, 1))
    state.persistence_mode = mode


def _set_power_limit(record: NvmlRecord, uuid: str, state: DeviceState, limit_mw: int) -> None:
    limits = _require(record, uuid, state, "nvmlDeviceGetPowerManagementLimitConstraints").answers[0].value
    _refuse_unless(limits[0] <= limit_mw <= limits[1])
    state.power_limit_mw = limit_mw


def _lock_graphics(record: NvmlRecord, uuid: str, state: DeviceState, least: int, most: int) -> None:
    _require(record, uuid, state, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_GRAPHICS)
    _refuse_unless(least <= most)
    state.locked_graphics_mhz = (least, most)


def _unlock_graphics(record: NvmlRecord, uuid: str, state: DeviceState) -> None:
    _require(record, uuid, state, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_GRAPHICS)
    state.locked_graphics_mhz = None


def _lock_memory(record: NvmlRecord, uuid: str, state: DeviceState, least: int, most: int) -> None:
    _require(record, uuid, state, "nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK)
    _refuse_unless(least <= most)
    state.locked_memory_mhz = (least, most)


def _unlock_memory(record: NvmlRecord, uuid: str, state: DeviceState) -> None:
    _require(record, uuid, state, "nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK)
    state.locked_memory_mhz = None


def _set_application(record: NvmlRecord, uuid: str, state: DeviceState, memory: int, graphics: int) -> None:
    _require(record, uuid, state, "nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_GRAPHICS)
    supported = record.call("nvmlDeviceGetSupportedGraphicsClocks", device(uuid), memory)
    _refuse_unless(supported is not None and graphics in (supported.answers[0].value or ()))
    state.application_clocks_mhz = (memory, graphics)


def _reset_application(record: NvmlRecord, uuid: str, state: DeviceState) -> None:
    default = "nvmlDeviceGetDefaultApplicationsClock"
    memory = _require(record, uuid, state, default, MEMORY_CLOCK).answers[0].value
    graphics = _require(record, uuid, state, default, pynvml.NVML_CLOCK_GRAPHICS).answers[0].value
    state.application_clocks_mhz = (memory, graphics)


SETTERS: Mapping[str, Setter] = {
    "nvmlDeviceSetPersistenceMode": _set_persistence,
    "nvmlDeviceSetPowerManagementLimit": _set_power_limit,
    "nvmlDeviceSetGpuLockedClocks": _lock_graphics,
    "nvmlDeviceResetGpuLockedClocks": _unlock_graphics,
    "nvmlDeviceSetMemoryLockedClocks": _lock_memory,
    "nvmlDeviceResetMemoryLockedClocks": _unlock_memory,
    "nvmlDeviceSetApplicationsClocks": _set_application,
    "nvmlDeviceResetApplicationsClocks": _reset_application,
}
"""All NVML setters that perfharness may call."""
