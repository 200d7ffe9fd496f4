"""Find and choose GPUs and MIG instances, and the CPUs near them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, open_nvml
from perfharness_launcher.options import CpuBind

CPUS_PER_WORD = 64

LEAST_SHARE = 0.5
"""`auto` binds only to CPUs that are at least this share of an average NUMA node."""


@dataclass(frozen=True)
class GpuFacts:
    """The GPUs of the machine, in NVML's order; a GPU in MIG mode is listed as its instances.

    Args:
        problem: why the list is empty.
        cuda_driver: newest CUDA version of the driver.
        lost: one sentence per GPU that the driver counts but cannot reach.
    """

    gpus: tuple[GpuRecord, ...] = ()
    problem: str | None = None
    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None
    lost: tuple[str, ...] = ()


def find_gpus() -> GpuFacts:
    """List the GPUs; never fails."""
    with open_nvml() as nvml:
        if not nvml.opened.ok:
            return GpuFacts(problem=nvml.opened.reason)
        lost = tuple(f"GPU {index} cannot be used: {answer.reason}" for index, answer in nvml.unreachable)
        gpus = tuple(_record(device) for device in nvml.devices if not device.is_mig_parent)
        cuda = nvml.ask("nvmlSystemGetCudaDriverVersion_v2").value
        return GpuFacts(
            gpus=gpus,
            problem=None if gpus else "; ".join(lost) or "the NVIDIA driver lists no GPU",
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
    """Choose GPUs by name, or `number` of the visible ones from `offset` on.

    Raises `UsageError` if a name is unknown or repeated, or too few GPUs are visible.
    """
    if names:
        chosen = [find_gpu(name, available) for name in names]
        if twice := [gpu.uuid for position, gpu in enumerate(chosen) if gpu in chosen[:position]]:
            raise UsageError(f"--gpus names {twice[0]} twice; use -np to run several processes on one GPU")
        return tuple(chosen)
    visible = list(available) if visible_devices is None else _visible(available, visible_devices)
    if offset + number > len(visible):
        why = "" if visible_devices is None else f" (CUDA_VISIBLE_DEVICES={visible_devices})"
        there = f"{len(visible)} GPUs are visible{why}"
        raise UsageError(f"-ng {number} with -go {offset} needs {offset + number} GPUs, but {there}")
    return tuple(visible[offset : offset + number])


def find_gpu(name: str, available: Sequence[GpuRecord]) -> GpuRecord:
    """Find a GPU by UUID (or a unique start of it), NVML index, or `INDEX:MIG` for a MIG instance."""
    found = _matching(name, available)
    if len(found) == 1:
        return found[0]
    if not found:
        there = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in available)
        raise UsageError(f"no GPU {name!r}; choose from {there}")
    several = ", ".join(gpu.uuid for gpu in found)
    raise UsageError(f"GPU {name!r} is ambiguous: {several}; give one in full")


def _matching(name: str, available: Sequence[GpuRecord]) -> list[GpuRecord]:
    if re.fullmatch(r"\d+", name):
        return [gpu for gpu in available if gpu.index == int(name)]
    if re.fullmatch(r"\d+:\d+", name):
        index, position = map(int, name.split(":"))
        return [gpu for gpu in available if gpu.mig and gpu.index == index][position : position + 1]
    exact = [gpu for gpu in available if gpu.uuid == name]
    return exact or [gpu for gpu in available if name and gpu.uuid.startswith(name)]


def _visible(available: Sequence[GpuRecord], visible_devices: str) -> list[GpuRecord]:
    """GPUs in CUDA_VISIBLE_DEVICES up to the first unknown name, as CUDA reads it."""
    visible = []
    for name in visible_devices.split(","):
        found = _matching(name.strip(), available)
        if len(found) != 1:
            break
        visible += found
    return visible


# ---- CPUs near GPUs ----


@dataclass(frozen=True)
class CpuFacts:
    """CPUs that a launch may use: all, by NUMA node, and (`near`) by GPU UUID as NVML reports."""

    allowed: frozenset[int] = frozenset()
    nodes: tuple[frozenset[int], ...] = ()
    near: Mapping[str, frozenset[int]] = field(default_factory=dict)


def find_cpus(gpus: Sequence[GpuRecord]) -> CpuFacts:
    """Find the CPUs, and those near each GPU; never fails."""
    allowed = frozenset(os.sched_getaffinity(0))
    nodes = tuple(node & allowed for node in numa_nodes() if node & allowed)
    near: dict[str, frozenset[int]] = {}
    with open_nvml() as nvml:
        words = max(allowed) // CPUS_PER_WORD + 1
        for device in filter(None, (nvml.device(gpu.uuid) for gpu in gpus if nvml.opened.ok)):
            masks = device.gpu.ask("nvmlDeviceGetCpuAffinity", words).value or ()
            cpus = frozenset(cpu for cpu in allowed if int(masks[cpu // CPUS_PER_WORD]) >> cpu % CPUS_PER_WORD & 1)
            near |= {device.uuid: cpus} if cpus else {}
    return CpuFacts(allowed, nodes, near)


def numa_nodes() -> list[frozenset[int]]:
    """The CPUs of each NUMA node."""
    return [read_cpu_list(path.read_text()) for path in Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")]


def read_cpu_list(text: str) -> frozenset[int]:
    """`0-2,8` -> {0, 1, 2, 8}."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1) if first else ())
    return frozenset(found)


def place(groups: Sequence[Sequence[GpuRecord]], bind: CpuBind, cpus: CpuFacts) -> tuple[list[tuple[int, ...]], str]:
    """Bind processes to the CPUs near their GPUs (`numa`, or `auto` if it helps).

    Returns the CPUs of each process (empty if not bound), and the reason. Raises `UsageError` if `numa` is impossible.

    Args:
        groups: the GPUs of each process.
    """
    problem = "asked for" if bind == "none" else _no_near_cpus(groups, cpus)
    if bind == "numa" and problem:
        raise UsageError(f"--cpu-bind numa: {problem}; drop --cpu-bind")
    near = [frozenset().union(*(cpus.near.get(gpu.uuid, frozenset()) for gpu in group)) for group in groups]
    if bind == "auto" and not problem:
        if len(cpus.nodes) < 2:
            problem = "all usable CPUs are on one NUMA node"
        elif any(len(one) * len(cpus.nodes) < LEAST_SHARE * len(cpus.allowed) for one in near):
            problem = "too few of the CPUs near the GPUs are usable"
    if problem:
        return [()] * len(groups), problem
    return [tuple(sorted(one)) for one in near], "asked for" if bind == "numa" else "several NUMA nodes"


def _no_near_cpus(groups: Sequence[Sequence[GpuRecord]], cpus: CpuFacts) -> str:
    if not all(groups):
        return "no GPU is used"
    unknown = min((gpu.index for group in groups for gpu in group if gpu.uuid not in cpus.near), default=None)
    return "" if unknown is None else f"NVML reports no usable CPUs near GPU {unknown}"
