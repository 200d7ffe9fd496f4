"""What CUDA can use, through NVML: GPUs and MIG instances by UUID, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, open_nvml


@dataclass(frozen=True)
class GpuFacts:
    """What NVML reports of the machine.

    Args:
        gpus: in NVML's order; a GPU that has MIG on stands as its instances.
        problem: why there are none, one sentence.
        cuda_driver: newest CUDA that the driver runs, `(13, 0)`.
        lost: GPUs that the driver counts but cannot reach, a sentence each.
    """

    gpus: tuple[GpuRecord, ...] = ()
    problem: str | None = None
    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None
    lost: tuple[str, ...] = ()


def find_gpus(module: Any = None) -> GpuFacts:
    """List the GPUs; never fails: the reason why there are none is part of the result.

    Args:
        module: `pynvml`, or one that answers like it; None: as `telemetry.nvml` decides.
    """
    with open_nvml(module) as nvml:
        if not nvml.opened.ok:
            return GpuFacts(problem=nvml.opened.reason)
        lost = tuple(f"GPU {index} cannot be used: {answer.reason}" for index, answer in nvml.unreachable)
        gpus = tuple(_record(device) for device in nvml.devices if not device.is_mig_parent)
        cuda = nvml.ask("nvmlSystemGetCudaDriverVersion_v2").value
        return GpuFacts(
            gpus=gpus,
            problem=None if gpus else "; ".join(lost) or "the NVIDIA driver is there but lists no GPU",
            driver=nvml.ask("nvmlSystemGetDriverVersion").value,
            cuda_driver=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            lost=lost,
        )


def _record(device: Device) -> GpuRecord:
    return GpuRecord(
        index=device.index,
        uuid=device.uuid,
        name=device.ask("nvmlDeviceGetName").value,
        memory_total_bytes=getattr(device.ask("nvmlDeviceGetMemoryInfo").value, "total", None),
        mig=device.is_mig,
    )


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
