"""The settings of a replayed GPU: the effect of each NVML setter, and the readings that show it.

A setting that the recorded card does not report is refused by its setter too, with the same error. The limits are the
card's own, from the record. Privileges are not modelled: a test of missing ones injects an error at the setter.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
from pydantic import BaseModel, ConfigDict, Field

from tests.support.nvml_record import NvmlRecord, device

MEMORY, GRAPHICS = pynvml.NVML_CLOCK_MEM, pynvml.NVML_CLOCK_GRAPHICS


class DeviceState(BaseModel):
    """The settings of one GPU; None where the card has no such setting, or where nothing is locked."""

    model_config = ConfigDict(extra="forbid")

    persistence_mode: int | None = None
    power_limit_mw: int | None = None
    locked_graphics_mhz: tuple[int, int] | None = None
    """Least and most; neither NVML nor the replay can read them back."""

    locked_memory_mhz: tuple[int, int] | None = None
    application_clocks_mhz: tuple[int, int] | None = None
    """Memory, graphics: in the order in which they are set."""


class NvmlState(BaseModel):
    """All GPUs by UUID, and when the replay began."""

    model_config = ConfigDict(extra="forbid")

    devices: dict[str, DeviceState] = Field(default_factory=dict)
    begin_monotonic_ns: int = 0
    begin_unix_ns: int = 0


class SharedState:
    """The state of a replayed machine.

    Args:
        path: a file that processes share; None: of this process alone.
        initial: the state where there is no file yet.
    """

    def __init__(self, path: Path | None, initial: NvmlState) -> None:
        self._path = path
        self._state = initial
        with self.changing():
            pass

    def read(self) -> NvmlState:
        """The state now."""
        return self._state if self._path is None else NvmlState.model_validate_json(self._path.read_bytes())

    @contextmanager
    def changing(self) -> Iterator[NvmlState]:
        """Change the state; other processes wait."""
        if self._path is None:
            yield self._state
            return
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read() if self._path.exists() else self._state
            yield state
            whole = self._path.with_suffix(f".{os.getpid()}.new")
            whole.write_text(state.model_dump_json(indent=1))
            whole.replace(self._path)


def initial_state(record: NvmlRecord) -> dict[str, DeviceState]:
    """The GPUs before any setter: the recorded settings, without locked clocks."""
    uuids = [call.arguments[0]["device"] for call in record.calls if call.function == "nvmlDeviceGetUUID"]
    return {uuid: _device_state(record, uuid) for uuid in uuids if not uuid.startswith("MIG")}


def _device_state(record: NvmlRecord, uuid: str) -> DeviceState:
    def recorded(function: str, *arguments: int) -> Any:
        call = record.call(function, device(uuid), *arguments)
        return None if call is None else call.answers[0].value

    clocks = [recorded("nvmlDeviceGetApplicationsClock", kind) for kind in (MEMORY, GRAPHICS)]
    return DeviceState(
        persistence_mode=recorded("nvmlDeviceGetPersistenceMode"),
        power_limit_mw=recorded("nvmlDeviceGetPowerManagementLimit"),
        application_clocks_mhz=None if None in clocks else (clocks[0], clocks[1]),
    )


def overridden(name: str, arguments: Sequence[Any], value: Any, state: DeviceState) -> Any:
    """A recorded reading after the setters' changes."""
    if name == "nvmlDeviceGetPersistenceMode":
        return state.persistence_mode
    if name in ("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit"):
        return state.power_limit_mw
    if name == "nvmlDeviceGetApplicationsClock" and state.application_clocks_mhz is not None:
        return state.application_clocks_mhz[0 if arguments[0] == MEMORY else 1]
    if name == "nvmlDeviceGetClockInfo":
        lock = state.locked_memory_mhz if arguments[0] == MEMORY else state.locked_graphics_mhz
        return value if lock is None else min(max(value, lock[0]), lock[1])
    return value


SETTERS: Mapping[str, tuple[str, str, tuple[int, ...]]] = {
    "nvmlDeviceSetPersistenceMode": ("persistence_mode", "nvmlDeviceGetPersistenceMode", ()),
    "nvmlDeviceSetPowerManagementLimit": (
        "power_limit_mw", "nvmlDeviceGetPowerManagementLimitConstraints", (),
    ),
    "nvmlDeviceSetGpuLockedClocks": ("locked_graphics_mhz", "nvmlDeviceGetMaxClockInfo", (GRAPHICS,)),
    "nvmlDeviceResetGpuLockedClocks": ("locked_graphics_mhz", "nvmlDeviceGetMaxClockInfo", (GRAPHICS,)),
    "nvmlDeviceSetMemoryLockedClocks": ("locked_memory_mhz", "nvmlDeviceGetMaxClockInfo", (MEMORY,)),
    "nvmlDeviceResetMemoryLockedClocks": ("locked_memory_mhz", "nvmlDeviceGetMaxClockInfo", (MEMORY,)),
    "nvmlDeviceResetApplicationsClocks": ("application_clocks_mhz", "nvmlDeviceGetApplicationsClock", (GRAPHICS,)),
    "nvmlDeviceSetApplicationsClocks": ("application_clocks_mhz", "nvmlDeviceGetApplicationsClock", (GRAPHICS,)),
}  # fmt: skip
"""All NVML setters that perfharness may call: the setting, and the reading that a card with it answers."""


def change(record: NvmlRecord, uuid: str, state: DeviceState | None, name: str, arguments: Sequence[int]) -> None:
    """What a setter does. Raises `NVMLError` where the card has no such setting, or does not take the value."""
    setting, function, kinds = SETTERS[name]
    reading = record.call(function, device(uuid), *kinds)
    if state is None or reading is None:  # a MIG instance, or an old card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if reading.answers[0].error is not None:
        raise pynvml.NVMLError(reading.answers[0].error)
    if name.startswith("nvmlDeviceReset"):
        setattr(state, setting, getattr(_device_state(record, uuid), setting))
        return
    if setting == "persistence_mode":
        allowed = arguments[0] in (0, 1)
    elif setting == "power_limit_mw":
        least, most = reading.answers[0].value
        allowed = least <= arguments[0] <= most
    elif setting == "application_clocks_mhz":
        supported = record.call("nvmlDeviceGetSupportedGraphicsClocks", device(uuid), arguments[0])
        allowed = supported is not None and arguments[1] in (supported.answers[0].value or ())
    else:
        allowed = arguments[0] <= arguments[1]
    if not allowed:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    setattr(state, setting, tuple(arguments) if len(arguments) > 1 else arguments[0])
