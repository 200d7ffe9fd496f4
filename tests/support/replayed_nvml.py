"""A replacement for `pynvml` that replays a recorded NVML; it needs no GPU, driver or NVML library.

Names, constants and error classes are those of `pynvml` itself. Readings come from the record, by the time since the
replay began; setters change the readings that they affect (docs/internals/architecture.md).
"""

from __future__ import annotations

import bisect
import ctypes
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pynvml

from perfharness.model.environment import NVML_MODULE
from perfharness.telemetry.nvml import VALUE_MEMBERS
from tests.support.nvml_record import (
    NvmlRecord,
    Recorded,
    RecordedField,
    RecordedGpm,
    device,
    from_json,
    read_record,
)
from tests.support.nvml_settings import SETTERS, NvmlState, SharedState, change, initial_state, overridden
from tests.support.steps import Steps

NVML_REPLAY = "PERFHARNESS_NVML_REPLAY"
"""File of the recorded NVML (JSON)."""

NVML_STATE = "PERFHARNESS_NVML_STATE"
"""File with the setters' changes, shared by all processes of a test; without it each process has its own state."""


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
        self._calls = {_call_key(call.function, call.arguments): call for call in record.calls}
        self._fields = {(item.device, item.field, item.scope): item for item in record.fields}
        self._samples = {(item.device, item.kind): item for item in record.samples}
        initial = NvmlState(devices=initial_state(record), begin_monotonic_ns=clock_ns(), begin_unix_ns=unix_ns())
        self._state = SharedState(state_path, initial)
        begin = self._state.read()
        self._begin_ns, self._begin_unix_us = begin.begin_monotonic_ns, begin.begin_unix_ns // 1000
        self.steps = steps or Steps()
        self._gpm: dict[str, list[RecordedGpm]] = {}
        for item in record.gpm:
            self._gpm.setdefault(item.device, []).append(item)
        self._gpm_samples: dict[int, GpmSample] = {}
        self._opened = 0
        self._special: dict[str, Callable[..., Any]] = {
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetFieldValues": self._field_values,
            "nvmlDeviceGetSamples": self._device_samples,
            "nvmlDeviceGetCpuAffinity": self._affinity,
            "nvmlGpmQueryDeviceSupport": self._gpm_support,
            "nvmlGpmSampleAlloc": self._gpm_alloc,
            "nvmlGpmSampleFree": self._gpm_free,
            "nvmlGpmSampleGet": self._gpm_sample,
            "nvmlGpmMigSampleGet": self._gpm_mig_sample,
            "nvmlGpmMetricsGet": self._gpm_metrics,
        }

    def __getattr__(self, name: str) -> Any:
        known = getattr(pynvml, name)  # AttributeError, as the installed pynvml has it
        if not name.startswith("nvml") or not callable(known) or isinstance(known, type) or name == "nvmlErrorString":
            return known
        return partial(self._step, name)

    def settings(self) -> NvmlState:
        """The machine's current settings, for assertions."""
        return self._state.read()

    def _step(self, name: str, *arguments: Any) -> Any:
        error = self.steps.before(name)
        if error is not None:
            raise pynvml.NVMLError(error)
        answer = self._answer(name, arguments)
        self.steps.after(name)
        return answer

    def _answer(self, name: str, arguments: Sequence[Any]) -> Any:
        if name == "nvmlInit":
            return self._init()
        if not self._opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if name in self._special:
            return self._special[name](*arguments)
        if name in SETTERS:
            return self._set(name, *arguments)
        value = self._recorded(name, *arguments)
        state = self._device_state(arguments[0]) if arguments else None
        return value if state is None else overridden(name, arguments[1:], value, state)

    def _init(self) -> None:
        if _call_key("nvmlInit", []) in self._calls:
            self._recorded("nvmlInit")
        self._opened += 1

    def _shutdown(self) -> None:
        self._opened -= 1

    def _recorded(self, name: str, *arguments: Any) -> Any:
        plain = [device(item.uuid) if isinstance(item, Handle) else item for item in arguments]
        call = self._calls.get(_call_key(name, plain))
        if call is None:  # as from a driver without the function
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        recorded = self._at_now(call.at_ns, call.answers)
        if recorded.error is not None:
            raise pynvml.NVMLError(recorded.error)
        return from_json(recorded.value, Handle)

    def _now_ns(self) -> int:
        return self._clock_ns() - self._begin_ns

    def _at_now(self, at_ns: Sequence[int], answers: Sequence[Recorded]) -> Recorded:
        return answers[max(0, bisect.bisect_right(at_ns, self._now_ns()) - 1)]

    def _device_state(self, handle: Any) -> Any:
        return self._state.read().devices.get(handle.uuid) if isinstance(handle, Handle) else None

    def _set(self, name: str, handle: Handle, *arguments: int) -> None:
        with self._state.changing() as state:
            change(self._record, handle.uuid, state.devices.get(handle.uuid), name, arguments)

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
        state = self._device_state(handle)
        limits = (pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT)
        if answer.error is None and state is not None and recorded.field in limits:
            return Recorded(value=state.power_limit_mw)
        return answer

    def _device_samples(self, handle: Handle, kind: int, last_seen_us: int) -> tuple[int, list[Any]]:
        recorded = self._samples.get((handle.uuid, kind))
        if recorded is None or recorded.error is not None:
            raise pynvml.NVMLError(recorded.error if recorded else pynvml.NVML_ERROR_NOT_SUPPORTED)
        end = bisect.bisect_right(recorded.at_us, self._now_ns() // 1000)
        first = max(end - recorded.capacity, bisect.bisect_right(recorded.at_us, last_seen_us - self._begin_unix_us), 0)
        if first >= end:  # NVML's answer when nothing is newer
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        samples = []
        for at_us, value in zip(recorded.at_us[first:end], recorded.values[first:end], strict=True):
            samples.append(pynvml.c_nvmlSample_t(timeStamp=self._begin_unix_us + at_us))
            setattr(samples[-1].sampleValue, VALUE_MEMBERS[recorded.value_type], value)
        return recorded.value_type, samples

    def _gpm_support(self, handle: Handle) -> Any:
        return pynvml.c_nvmlGpmSupport_t(
            version=pynvml.NVML_GPM_SUPPORT_VERSION, isSupportedDevice=int(handle.uuid in self._gpm)
        )

    def _gpm_alloc(self) -> Any:
        sample = GpmSample((ctypes.c_uint64 * 1)())
        self._gpm_samples[ctypes.addressof(sample.memory)] = sample
        return ctypes.cast(sample.memory, pynvml.c_nvmlGpmSample_t)

    def _gpm_free(self, sample: Any) -> None:
        del self._gpm_samples[ctypes.cast(sample, ctypes.c_void_p).value or 0]

    def _gpm_sample(self, handle: Handle, sample: Any) -> Any:
        if handle.uuid not in self._gpm:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        now_ns, refresh_ns = self._now_ns(), self._record.gpm_refresh_ns
        self._gpm_of(sample).taken = handle.uuid, now_ns // refresh_ns * refresh_ns if refresh_ns else now_ns
        return sample

    def _gpm_mig_sample(self, gpu: Handle, instance: int, sample: Any) -> Any:
        numbers = (call for call in self._record.calls if call.function == "nvmlDeviceGetGpuInstanceId")
        uuids = [call.arguments[0]["device"] for call in numbers if call.answers[0].value == instance]
        mine = [uuid for uuid in uuids if self._parent_of(uuid) == gpu.uuid]
        return self._gpm_sample(Handle(mine[0] if mine else ""), sample)

    def _parent_of(self, uuid: str) -> str | None:
        found = (call for call in self._record.calls if call.function == "nvmlDeviceGetMigDeviceHandleByIndex")
        return next((call.arguments[0]["device"] for call in found if call.answers[0].value == device(uuid)), None)

    def _gpm_of(self, sample: Any) -> GpmSample:
        return self._gpm_samples[ctypes.cast(sample, ctypes.c_void_p).value or 0]

    def _gpm_metrics(self, request: Any) -> Any:
        """Means over the time between two samples of one device, as the record has the values in between."""
        taken = self._gpm_of(request.sample1).taken, self._gpm_of(request.sample2).taken
        if taken[0] is None or taken[1] is None or taken[0][0] != taken[1][0] or taken[0][1] > taken[1][1]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        recorded = {item.metric: item for item in self._gpm[taken[0][0]]}
        for metric in request.metrics[: request.numMetrics]:
            item = recorded.get(metric.metricId)
            if item is None:
                metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
                continue
            if taken[0][1] == taken[1][1]:  # no refresh in between: as an H200 answers
                metric.value = math.nan if metric.metricId == pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL else 0.0
                continue
            metric.nvmlReturn, metric.value = _mean_between(item, taken[0][1], taken[1][1])
        return request

    def _affinity(self, handle: Handle, size: int) -> Any:
        """CPU sets fill as many 64-bit words as the caller provides."""
        return (ctypes.c_ulonglong * size)(*self._recorded("nvmlDeviceGetCpuAffinity", handle)[:size])


@dataclass
class GpmSample:
    """What stands behind NVML's opaque sample: the device, and when it was taken."""

    memory: Any
    taken: tuple[str, int] | None = None


def _mean_between(item: RecordedGpm, start_ns: int, end_ns: int) -> tuple[int, float]:
    """NVML's error code, or 0 and the mean."""
    total, edges = 0.0, [*item.at_ns[1:], end_ns]
    for begin, end, answer in zip([start_ns, *item.at_ns[1:]], edges, item.answers, strict=True):
        length = min(end, end_ns) - max(begin, start_ns)
        if length <= 0:
            continue
        if answer.error is not None:
            return answer.error, 0.0
        total += float(answer.value) * length
    return 0, total / (end_ns - start_ns)


def _call_key(function: str, arguments: list[Any]) -> str:
    return json.dumps([function, arguments], sort_keys=True)
