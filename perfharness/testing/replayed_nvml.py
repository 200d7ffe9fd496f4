"""A replacement for `pynvml` that replays a recorded NVML; it needs no GPU, driver or NVML library.

Names, constants and error classes are those of `pynvml` itself. Readings come from the record, by the time since the
replay began; setters change the readings that they affect (docs/internals/testing-nvml.md).
"""

from __future__ import annotations

import bisect
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pynvml

from perfharness.model.environment import NVML_MODULE
from perfharness.testing.nvml_record import NvmlRecord, Recorded, RecordedField, RecordedSamples, read_record
from perfharness.testing.nvml_settings import SETTERS, initial_state, overridden
from perfharness.testing.nvml_state import NvmlState, StateFile, StateInMemory
from perfharness.testing.nvml_values import argument_key, device, from_json
from perfharness.testing.steps import Steps

NVML_REPLAY = "PERFHARNESS_NVML_REPLAY"
"""File of the recorded NVML (JSON)."""

NVML_STATE = "PERFHARNESS_NVML_STATE"
"""File with the setters' changes, shared by all processes of a test; without it each process has its own state."""

VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True)
class Handle:
    """A device, as an argument of the replay's functions; opaque like NVML's own."""

    uuid: str


def __getattr__(name: str) -> Any:
    """The module itself acts as `pynvml`, replaying the record that the environment names."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_of_environment(os.environ[NVML_REPLAY], os.environ.get(NVML_STATE)), name)


@cache
def _of_environment(record: str, state: str | None) -> ReplayedNvml:
    return ReplayedNvml(
        read_record(Path(record)), state_path=Path(state) if state else None, steps=Steps.from_environment(os.environ)
    )


def replay_environment(record: Path) -> dict[str, str]:
    """Environment variables that make a process use the replay."""
    return {NVML_MODULE: __name__, NVML_REPLAY: str(record)}


class ReplayedNvml:
    """Answers like `pynvml`.

    Args:
        clock_ns: monotonic; the record's time is its time since the replay began.
        state_path: file of the state; None: in memory.
        steps: counts every call, and injects planned faults.
    """

    def __init__(
        self,
        record: NvmlRecord,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
        state_path: Path | None = None,
        steps: Steps | None = None,
    ) -> None:
        self._record = record
        self._clock_ns = clock_ns
        self._calls = {argument_key(call.function, call.arguments): call for call in record.calls}
        self._fields = {(item.device, item.field, item.scope): item for item in record.fields}
        self._samples = {(item.device, item.kind): item for item in record.samples}
        initial = initial_state(record)
        initial.begin_monotonic_ns, initial.begin_unix_ns = clock_ns(), unix_ns()
        self.state = StateInMemory(initial) if state_path is None else StateFile(state_path, initial)
        begin = self.state.read()
        self._begin_ns, self._begin_unix_us = begin.begin_monotonic_ns, begin.begin_unix_ns // 1000
        self.steps = steps or Steps()
        self._opened = 0
        self._special: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._init,
            "nvmlInitWithFlags": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetHandleByUUID": self._handle_by_uuid,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceGetSamples": self._device_samples,
            "nvmlDeviceGetCpuAffinity": partial(self._affinity, "nvmlDeviceGetCpuAffinity"),
            "nvmlDeviceGetMemoryAffinity": partial(self._affinity, "nvmlDeviceGetMemoryAffinity"),
            "nvmlDeviceGetCpuAffinityWithinScope": partial(self._affinity, "nvmlDeviceGetCpuAffinityWithinScope"),
        }

    def __getattr__(self, name: str) -> Any:
        known = getattr(pynvml, name)  # AttributeError, as the installed pynvml has it
        if not name.startswith("nvml") or not callable(known) or isinstance(known, type) or name == "nvmlErrorString":
            return known
        return partial(self._step, name)

    def settings(self) -> NvmlState:
        """The machine's current settings, for assertions."""
        return self.state.read()

    def _step(self, name: str, *arguments: Any) -> Any:
        error = self.steps.before(name)
        if error is not None:
            raise pynvml.NVMLError(error)
        answer = self._answer(name, arguments)
        self.steps.after(name)
        return answer

    def _answer(self, name: str, arguments: Sequence[Any]) -> Any:
        if name in ("nvmlInit", "nvmlInitWithFlags"):
            return self._init()
        if not self._opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if name in self._special:
            return self._special[name](*arguments)
        if name in SETTERS:
            return self._set(name, *arguments)
        return self._value(self._recorded(name, list(arguments)), name, arguments)

    def _init(self, _flags: int = 0) -> None:
        recorded = self._calls.get(argument_key("nvmlInit", []))
        if recorded is not None:
            self._value(recorded.answers[0], "nvmlInit", ())
        self._opened += 1

    def _shutdown(self) -> None:
        self._opened -= 1

    def _handle_by_uuid(self, uuid: str | bytes) -> Handle:
        text = uuid.decode() if isinstance(uuid, bytes) else uuid
        known = argument_key("nvmlDeviceGetUUID", [device(text)])
        if known not in self._calls:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(text)

    def _recorded(self, name: str, arguments: list[Any]) -> Recorded:
        plain = [device(item.uuid) if isinstance(item, Handle) else item for item in arguments]
        call = self._calls.get(argument_key(name, plain))
        if call is None:  # as from a driver without the function
            return Recorded(error=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return self._at_now(call.at_ns, call.answers)

    def _now_ns(self) -> int:
        return self._clock_ns() - self._begin_ns

    def _at_now(self, at_ns: Sequence[int], answers: Sequence[Recorded]) -> Recorded:
        return answers[max(0, bisect.bisect_right(at_ns, self._now_ns()) - 1)]

    def _value(self, recorded: Recorded, name: str, arguments: Sequence[Any]) -> Any:
        if recorded.error is not None:
            raise pynvml.NVMLError(recorded.error)
        value = from_json(recorded.value, Handle)
        if arguments and isinstance(arguments[0], Handle):
            state = self.state.read().devices.get(arguments[0].uuid)
            if state is not None:
                return overridden(name, arguments[1:], value, state)
        return value

    def _set(self, name: str, handle: Handle, *arguments: int) -> None:
        with self.state.changing() as state:
            SETTERS[name](self._record, handle.uuid, state.devices.get(handle.uuid), *arguments)

    def _field_values(self, handle: Handle, ids: Sequence[int | Sequence[int]]) -> list[Any]:
        return [self._field_value(handle, *([item, 0] if isinstance(item, int) else item)) for item in ids]

    def _field_value(self, handle: Handle, field: int, scope: int) -> Any:
        value = pynvml.c_nvmlFieldValue_t(fieldId=field, scopeId=scope)
        recorded = self._fields.get((handle.uuid, field, scope))
        answer = self._field_answer(handle, recorded)
        if answer.error is not None or recorded is None:
            value.nvmlReturn = answer.error
            return value
        value.valueType = recorded.value_type
        setattr(value.value, VALUE_MEMBERS[recorded.value_type], answer.value)
        value.timestamp = self._begin_unix_us + self._now_ns() // 1000
        return value

    def _field_answer(self, handle: Handle, recorded: RecordedField | None) -> Recorded:
        if recorded is None:
            return Recorded(error=pynvml.NVML_ERROR_NOT_SUPPORTED)
        answer = self._at_now(recorded.at_ns, recorded.answers)
        state = self.state.read().devices.get(handle.uuid)
        limits = (pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT)
        if answer.error is None and state is not None and recorded.field in limits:
            return Recorded(value=state.power_limit_mw)
        return answer

    def _device_samples(self, handle: Handle, kind: int, last_seen_us: int) -> tuple[int, list[Any]]:
        recorded = self._samples.get((handle.uuid, kind))
        if recorded is None or recorded.error is not None:
            raise pynvml.NVMLError(recorded.error if recorded else pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = self._buffered(recorded, last_seen_us)
        if not found:  # NVML's answer when nothing is newer
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return recorded.value_type, found

    def _buffered(self, recorded: RecordedSamples, last_seen_us: int) -> list[Any]:
        end = bisect.bisect_right(recorded.at_us, self._now_ns() // 1000)
        found = []
        for position in range(max(0, end - recorded.capacity), end):
            taken_us = self._begin_unix_us + recorded.at_us[position]
            if taken_us > last_seen_us:
                sample = pynvml.c_nvmlSample_t(timeStamp=taken_us)
                setattr(sample.sampleValue, VALUE_MEMBERS[recorded.value_type], recorded.values[position])
                found.append(sample)
        return found

    def _affinity(self, name: str, handle: Handle, size: int, *scope: int) -> Any:
        """CPU and memory node sets fill as many 64-bit words as the caller provides."""
        words = self._value(self._recorded(name, [handle, *scope]), name, ())
        if any(words[size:]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        return (ctypes.c_ulonglong * size)(*words[:size])
