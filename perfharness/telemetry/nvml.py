"""Access to NVML: devices by UUID; queries return a value or the reason for none, and never raise.

Uses `pynvml`, or the module named by `PERFHARNESS_NVML_MODULE`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from perfharness.model.environment import NVML_MODULE


class Refusal(str, Enum):
    """Reason for a missing NVML value."""

    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    NOT_FOUND = "not_found"
    OTHER = "other"


KINDS = {
    **dict.fromkeys((2, 3, 13, 22, 25, 26), Refusal.NOT_SUPPORTED),  # 2: argument not supported by this device
    **dict.fromkeys((4, 17), Refusal.NO_PERMISSION),
    **dict.fromkeys((6, 28), Refusal.NOT_FOUND),
}
"""NVML's error codes (`nvmlReturn_t` in nvml.h); all others are `OTHER`."""


@dataclass(frozen=True)
class Answer:
    """Result of one query as returned by `pynvml`, with text as `str`; or the reason why it was refused."""

    value: Any = None
    refusal: Refusal | None = None
    reason: str | None = None
    code: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.refusal is None


def refused(nvml: Any, code: int) -> Answer:
    """Answer for an NVML error code."""
    kind = KINDS.get(code, Refusal.OTHER)
    hint = "; this needs root" if kind is Refusal.NO_PERMISSION else ""
    return Answer(None, kind, f"NVML: {nvml.NVMLError(code)}{hint}", code)


def ask(nvml: Any, function: str, *arguments: Any) -> Answer:
    """Call an NVML function by its name in `pynvml`."""
    call = getattr(nvml, function, None)
    if call is None:  # an old package `pynvml` can shadow that of nvidia-ml-py
        return Answer(None, Refusal.NOT_SUPPORTED, "the installed nvidia-ml-py lacks this query; update it")
    try:
        value = call(*arguments)
    except nvml.NVMLError as error:
        return refused(nvml, int(error.value))
    return Answer(value.decode(errors="replace") if isinstance(value, bytes) else value)


@dataclass(frozen=True)
class Device:
    """One GPU or MIG instance of an open NVML.

    Args:
        index: NVML's number of the GPU, or of a MIG instance's parent.
        parent: GPU of a MIG instance.
        is_mig_parent: whether MIG is on, so that CUDA uses the instances.
    """

    nvml: Any
    handle: Any
    uuid: str
    index: int
    parent: Device | None = None
    is_mig_parent: bool = False

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG instance."""
        return self.parent is not None

    @property
    def gpu(self) -> Device:
        """The whole GPU, which has the clocks, power and temperature of its MIG instances."""
        return self.parent or self

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Query this device: `device.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)`."""
        return ask(self.nvml, function, self.handle, *arguments)

    def fields(self, ids: Sequence[int | tuple[int, int]]) -> list[Answer]:
        """Field values (`NVML_FI_…`) in one call, in the given order; each may be refused separately.

        Args:
            ids: a field, or a field and its scope (link of an NVLink counter; 0 or 1 for power).
        """
        answer = self.ask("nvmlDeviceGetFieldValues", list(ids))
        return [_field_value(self.nvml, value) for value in answer.value] if answer.ok else [answer] * len(ids)


VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union `nvmlValue_t` for each `nvmlValueType_t`."""


def _field_value(nvml: Any, field: Any) -> Answer:
    if field.nvmlReturn:
        return refused(nvml, int(field.nvmlReturn))
    kind = int(field.valueType)
    if kind >= len(VALUE_MEMBERS):
        return Answer(None, Refusal.OTHER, f"the value has an unknown type ({kind})")
    return Answer(getattr(field.value, VALUE_MEMBERS[kind]))


@dataclass(frozen=True)
class Nvml:
    """An open NVML, or the reason why it could not be opened.

    Args:
        opened: result of `nvmlInit`.
        devices: every GPU, followed by its MIG instances.
        unreachable: index and reason of GPUs that the driver counts but cannot open.
    """

    module: Any
    opened: Answer
    devices: tuple[Device, ...] = ()
    unreachable: tuple[tuple[int, Answer], ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Whole GPUs."""
        return tuple(device for device in self.devices if not device.is_mig)

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Query the machine: `nvml.ask("nvmlSystemGetDriverVersion")`."""
        return ask(self.module, function, *arguments) if self.opened.ok else self.opened

    def device(self, uuid: str) -> Device | None:
        """The GPU or MIG instance with this UUID, or None."""
        return next((device for device in self.devices if device.uuid == uuid), None)


@contextmanager
def open_nvml(module: Any = None) -> Iterator[Nvml]:
    """Open NVML while the block runs; never fails, see `Nvml.opened`."""
    module = module or importlib.import_module(os.environ.get(NVML_MODULE) or "pynvml")
    opened = ask(module, "nvmlInit")
    if not opened.ok:
        yield Nvml(module, opened)
        return
    try:
        unreachable: list[tuple[int, Answer]] = []
        yield Nvml(module, opened, tuple(_devices(module, unreachable)), tuple(unreachable))
    finally:
        ask(module, "nvmlShutdown")


def _devices(nvml: Any, unreachable: list[tuple[int, Answer]]) -> Iterator[Device]:
    for index in range(ask(nvml, "nvmlDeviceGetCount").value or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        uuid = ask(nvml, "nvmlDeviceGetUUID", handle.value) if handle.ok else handle
        if not uuid.ok:  # a lost GPU keeps its index
            unreachable.append((index, uuid))
            continue
        mode = ask(nvml, "nvmlDeviceGetMigMode", handle.value)
        is_divided = mode.ok and mode.value[0] == nvml.NVML_DEVICE_MIG_ENABLE
        gpu = Device(nvml, handle.value, uuid.value, index, is_mig_parent=is_divided)
        yield gpu
        for position in range((gpu.ask("nvmlDeviceGetMaxMigDeviceCount").value or 0) if is_divided else 0):
            handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", position)
            uuid = ask(nvml, "nvmlDeviceGetUUID", handle.value) if handle.ok else handle
            if uuid.ok:  # empty slots return "not found"
                yield Device(nvml, handle.value, uuid.value, index, parent=gpu)
