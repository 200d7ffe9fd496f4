"""What CUDA can be pointed at, through NVML: GPUs and MIG instances by UUID, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import nvml_module


@dataclass(frozen=True)
class GpuFacts:
    """What NVML tells of the machine.

    Args:
        gpus: in NVML's order; a GPU that has MIG on stands as its instances.
        problem: why there are none, one sentence.
        cuda_driver: newest CUDA that the driver runs, `(13, 0)`.
    """

    gpus: tuple[GpuRecord, ...] = ()
    problem: str | None = None
    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None


def find_gpus(nvml: Any = None) -> GpuFacts:
    """List the GPUs; never fails, says instead why there are none.

    Args:
        nvml: the module `pynvml`, or one that answers like it.
    """
    if nvml is None:
        nvml = nvml_module()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuFacts(problem=f"NVML: {error}")
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        gpus = tuple(_devices(nvml))
        return GpuFacts(
            gpus=gpus,
            problem=None if gpus else "the NVIDIA driver is there but lists no GPU",
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda_driver=(cuda // 1000, cuda % 1000 // 10),
        )
    except nvml.NVMLError as error:
        return GpuFacts(problem=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Any) -> Iterator[GpuRecord]:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if not _mig_is_on(nvml, handle):
            yield _record(nvml, handle, index, mig=False)
            continue
        for position in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
            except nvml.NVMLError_NotFound:
                continue
            yield _record(nvml, instance, index, mig=True)


def _mig_is_on(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # the card knows no MIG
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _record(nvml: Any, handle: Any, index: int, *, mig: bool) -> GpuRecord:
    return GpuRecord(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(_or_none(nvml, nvml.nvmlDeviceGetName, handle)),
        memory_total_bytes=getattr(_or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle), "total", None),
        mig=mig,
    )


def _or_none(nvml: Any, query: Any, handle: Any) -> Any:
    try:
        return query(handle)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> Any:
    """Older pynvml answers in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def choose_gpus(
    available: Sequence[GpuRecord],
    *,
    names: Sequence[str] = (),
    number: int = 1,
    offset: int = 0,
    visible_devices: str | None = None,
) -> tuple[GpuRecord, ...]:
    """The GPUs to use: by name, or `number` of them from `offset` on among the visible ones.

    Raises:
        UsageError: a name that is not there or comes twice, or fewer GPUs than asked for.
    """
    if names:
        chosen = [gpu for name in names for gpu in [find_gpu(name, available)]]
        if twice := [gpu.uuid for position, gpu in enumerate(chosen) if gpu in chosen[:position]]:
            raise UsageError(f"--gpus names {twice[0]} twice; use -np to run several processes on one GPU")
        return tuple(chosen)
    visible = _visible(available, visible_devices)
    if offset + number > len(visible):
        there = f"{len(visible)} GPU{'s are' if len(visible) != 1 else ' is'} visible"
        raise UsageError(
            f"-ng {number} with -go {offset} needs {offset + number} GPUs, but {there}"
            + (f" (CUDA_VISIBLE_DEVICES={visible_devices})" if visible_devices is not None else "")
        )
    return tuple(visible[offset : offset + number])


def find_gpu(name: str, available: Sequence[GpuRecord]) -> GpuRecord:
    """The GPU called `name`: a UUID or the clear start of one, an NVML index, or `INDEX:MIG` for a MIG instance."""
    found = _matching(name, available)
    if len(found) == 1:
        return found[0]
    if not found:
        there = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in available)
        raise UsageError(f"no GPU is called {name!r}; there are: {there}")
    several = ", ".join(gpu.uuid for gpu in found)
    raise UsageError(f"{name!r} may be any of {several}; name one of them in full")


def _matching(name: str, available: Sequence[GpuRecord]) -> list[GpuRecord]:
    if re.fullmatch(r"\d+", name):
        return [gpu for gpu in available if gpu.index == int(name)]
    if re.fullmatch(r"\d+:\d+", name):
        index, position = map(int, name.split(":"))
        return [gpu for gpu in available if gpu.mig and gpu.index == index][position : position + 1]
    exact = [gpu for gpu in available if gpu.uuid == name]
    return exact or [gpu for gpu in available if name and gpu.uuid.startswith(name)]


def _visible(available: Sequence[GpuRecord], visible_devices: str | None) -> list[GpuRecord]:
    """Those that CUDA_VISIBLE_DEVICES lets through, in its order; like CUDA, it stops at the first unknown name."""
    if visible_devices is None:
        return list(available)
    visible = []
    for name in visible_devices.split(","):
        found = _matching(name.strip(), available)
        if len(found) != 1:
            break
        visible += found
    return visible
