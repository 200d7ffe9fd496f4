"""Access to NVML: devices by UUID, and each query answered by a value or by a reason why not.

No failed reading raises. What answers is `pynvml`, or the module that `PERFHARNESS_NVML_MODULE` names.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from perfharness.model.environment import NVML_MODULE


class Refusal(str, Enum):
    """Why NVML gave no value."""

    NO_LIBRARY = "no_library"
    NO_DRIVER = "no_driver"
    NO_PERMISSION = "no_permission"
    NOT_SUPPORTED = "not_supported"
    MIG = "mig"
    NO_DATA = "no_data"
    NOT_FOUND = "not_found"
    GPU_LOST = "gpu_lost"
    BUSY = "busy"
    INVALID_ARGUMENT = "invalid_argument"
    FAILED = "failed"


REFUSALS: Mapping[int, tuple[Refusal, str]] = {
    1: (Refusal.FAILED, "NVML is not open"),
    2: (Refusal.INVALID_ARGUMENT, "the driver does not take this value"),
    3: (Refusal.NOT_SUPPORTED, "this GPU does not support it"),
    4: (Refusal.NO_PERMISSION, "no permission; it takes root"),
    5: (Refusal.FAILED, "NVML is already open"),
    6: (Refusal.NOT_FOUND, "the driver knows no such thing"),
    7: (Refusal.FAILED, "the answer is larger than what was made ready for it"),
    8: (Refusal.FAILED, "the GPU's external power cables are not attached properly"),
    9: (Refusal.NO_DRIVER, "the NVIDIA driver is not loaded"),
    10: (Refusal.BUSY, "the driver did not answer in time"),
    11: (Refusal.FAILED, "the kernel found an interrupt problem with the GPU"),
    12: (Refusal.NO_LIBRARY, "the NVML library (libnvidia-ml.so.1) is not on this machine"),
    13: (Refusal.NOT_SUPPORTED, "the installed driver does not have this query"),
    14: (Refusal.FAILED, "the GPU's infoROM is corrupted"),
    15: (Refusal.GPU_LOST, "the GPU is lost: it has fallen off the bus, or is not reachable any more"),
    16: (Refusal.GPU_LOST, "the GPU needs a reset before it can be used again"),
    17: (Refusal.NO_PERMISSION, "the operating system or the container blocks it"),
    18: (Refusal.NO_DRIVER, "NVML and the loaded driver are of different versions; a restart is due after an update"),
    19: (Refusal.BUSY, "the GPU is in use"),
    20: (Refusal.FAILED, "not enough memory"),
    21: (Refusal.NO_DATA, "the driver has no data yet"),
    22: (Refusal.NOT_SUPPORTED, "a vGPU with ECC on does not support it"),
    23: (Refusal.FAILED, "the GPU's resources are used up"),
    24: (Refusal.NOT_SUPPORTED, "this GPU does not run at that clock"),
    25: (Refusal.NOT_SUPPORTED, "the installed driver has another version of this query"),
    26: (Refusal.NOT_SUPPORTED, "the installed driver no longer has this query"),
    27: (Refusal.BUSY, "the GPU is not ready yet"),
    28: (Refusal.NOT_FOUND, "there is no such GPU"),
    29: (Refusal.FAILED, "the GPU is in a state that does not allow it"),
    30: (Refusal.NOT_SUPPORTED, "this GPU does not support that kind of reset"),
}
"""NVML's error codes (`nvmlReturn_t` in nvml.h) as `Refusal`; 999 and any code not known yet are `FAILED`."""

NO_SUCH_FUNCTION = (Refusal.NOT_SUPPORTED, "the installed nvidia-ml-py does not have this query; a newer one may")
MIG_REASON = "a MIG instance does not support it; its parent GPU may"
NOT_ASKED = -1
"""Code of an answer that never reached NVML."""


@dataclass(frozen=True)
class Answer:
    """The answer to one query.

    Args:
        value: as `pynvml` gives it, text always as `str`; None where refused (and for calls that return nothing).
        refusal, reason: both None where answered; else the kind, and one sentence without a full stop.
        code: NVML's error code; 0 where answered.
    """

    value: Any = None
    refusal: Refusal | None = None
    reason: str | None = None
    code: int = 0

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return self.refusal is None


@dataclass(frozen=True)
class FieldReading:
    """One field value.

    Args:
        answer: the number.
        timestamp_us: when the driver took it, microseconds since 1970 on the host's clock; 0: not reported.
    """

    answer: Answer
    timestamp_us: int = 0


def refused(code: int, *, mig: bool = False) -> Answer:
    """The answer that an NVML error code stands for."""
    refusal, reason = REFUSALS.get(code, (Refusal.FAILED, f"NVML failed with its error {code}"))
    if mig and refusal in (Refusal.NOT_SUPPORTED, Refusal.INVALID_ARGUMENT):
        refusal, reason = Refusal.MIG, MIG_REASON
    return Answer(None, refusal, reason, code)


def ask(nvml: Any, function: str, *arguments: Any, mig: bool = False) -> Answer:
    """Call one function of NVML; whatever it returns becomes an answer.

    Args:
        nvml: the module `pynvml`, or one that answers like it.
        function: its name, as in `pynvml`.
        mig: whether the device among the arguments is a MIG instance, for the reason's sake.
    """
    call = getattr(nvml, function, None)
    if call is None:
        return Answer(None, *NO_SUCH_FUNCTION, NOT_ASKED)
    try:
        value = call(*arguments)
    except nvml.NVMLError as error:
        return refused(int(error.value), mig=mig)
    return Answer(value.decode(errors="replace") if isinstance(value, bytes) else value)


@dataclass(frozen=True)
class Device:
    """One GPU or MIG instance of an open NVML.

    Args:
        index: of the GPU among NVML's own, which CUDA_VISIBLE_DEVICES does not shift; a MIG instance has its parent's.
        parent: the GPU of a MIG instance.
        is_mig_parent: whether MIG is on: CUDA then sees its instances, if there are any, and not this GPU itself.
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
        """The whole GPU: clocks, power and temperature are the GPU's, also where a MIG instance was chosen."""
        return self.parent or self

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Ask about this device: `device.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)`."""
        return ask(self.nvml, function, self.handle, *arguments, mig=self.is_mig)

    def fields(self, ids: Sequence[int | tuple[int, int]]) -> list[FieldReading]:
        """Field values (`NVML_FI_…`) in one call, in the order asked; each may be refused by itself.

        Args:
            ids: a field, or a field and its scope (the link of an NVLink counter; 0 or 1 for power).
        """
        answer = self.ask("nvmlDeviceGetFieldValues", list(ids))
        if not answer.ok:
            return [FieldReading(answer)] * len(ids)
        return [_field_reading(value, mig=self.is_mig) for value in answer.value]


VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union `nvmlValue_t` for each `nvmlValueType_t`."""


def _field_reading(value: Any, *, mig: bool) -> FieldReading:
    if value.nvmlReturn:
        return FieldReading(refused(int(value.nvmlReturn), mig=mig))
    kind = int(value.valueType)
    if kind >= len(VALUE_MEMBERS):
        return FieldReading(Answer(None, Refusal.FAILED, f"the value is of a kind not known yet ({kind})", NOT_ASKED))
    return FieldReading(Answer(getattr(value.value, VALUE_MEMBERS[kind])), int(value.timestamp))


@dataclass(frozen=True)
class Nvml:
    """An open NVML, or the reason why it could not be opened.

    Args:
        module: `pynvml` or its replay; its constants are read from here.
        opened: the answer of `nvmlInit`.
        devices: every GPU, each followed by its MIG instances.
        unreachable: GPUs that the driver counts but does not give: index, and why.
    """

    module: Any
    opened: Answer
    devices: tuple[Device, ...] = ()
    unreachable: tuple[tuple[int, Answer], ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The whole GPUs."""
        return tuple(device for device in self.devices if not device.is_mig)

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Ask about the machine: `nvml.ask("nvmlSystemGetDriverVersion")`."""
        return ask(self.module, function, *arguments) if self.opened.ok else self.opened

    def device(self, uuid: str) -> Device | None:
        """The GPU or MIG instance of that UUID, or None."""
        return next((device for device in self.devices if device.uuid == uuid), None)


@contextmanager
def open_nvml(module: Any = None) -> Iterator[Nvml]:
    """Open NVML for a while; never fails, see `Nvml.opened`.

    Args:
        module: `pynvml`, or one that answers like it; None: what answers in this process.
    """
    if module is None:
        module = importlib.import_module(os.environ.get(NVML_MODULE) or "pynvml")
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
        if not uuid.ok:  # a GPU that is lost keeps its index; the others are queried nevertheless
            unreachable.append((index, uuid))
            continue
        mode = ask(nvml, "nvmlDeviceGetMigMode", handle.value)
        is_divided = mode.ok and mode.value[0] == nvml.NVML_DEVICE_MIG_ENABLE
        gpu = Device(nvml, handle.value, uuid.value, index, is_mig_parent=is_divided)
        yield gpu
        if is_divided:
            yield from _mig_instances(gpu)


def _mig_instances(gpu: Device) -> Iterator[Device]:
    for position in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount").value or 0):
        handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", position)
        uuid = ask(gpu.nvml, "nvmlDeviceGetUUID", handle.value) if handle.ok else handle
        if uuid.ok:  # an empty place answers "not found"
            yield Device(gpu.nvml, handle.value, uuid.value, gpu.index, parent=gpu)
