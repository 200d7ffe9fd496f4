"""Which CPUs there are, which are near a GPU, and which of them each process of a plan gets."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, open_nvml
from perfharness_launcher.plan.options import CpuBind
from perfharness_launcher.process import Placement, cpu_list

ROOT = Path("/")
WORD_BITS = 64


@dataclass(frozen=True)
class CpuTopology:
    """The CPUs of a machine.

    Args:
        allowed: those that the launcher may run on: less what cgroups, taskset and the like exclude.
        online: all that the machine runs.
        cores: the allowed CPUs of each physical core, SMT siblings together.
        nodes: CPUs of each NUMA node.
    """

    allowed: frozenset[int]
    online: frozenset[int]
    cores: tuple[tuple[int, ...], ...]
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def cores_in(self, cpus: frozenset[int]) -> list[tuple[int, ...]]:
        """The physical cores of which all allowed CPUs are among these, in order of their first CPU."""
        return sorted(core for core in self.cores if cpus.issuperset(core))


@dataclass(frozen=True)
class GpuLocality:
    """What is near a GPU.

    Args:
        cpus: the nearest ones; empty where that is not known.
        source: where that is from.
        problem: why nothing is known.
    """

    cpus: frozenset[int] = frozenset()
    source: str = ""
    problem: str | None = None


def read_topology(root: Path = ROOT, allowed: Collection[int] | None = None) -> CpuTopology:
    """The CPUs of this machine.

    Args:
        root: where /sys and /proc are.
        allowed: CPUs that this process may run on; None: asked of the kernel, which knows cgroups and taskset.
    """
    usable = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    cpus, nodes = root / "sys/devices/system/cpu", (root / "sys/devices/system/node").glob("node[0-9]*")
    return CpuTopology(
        allowed=usable,
        online=parse_cpu_list(_read(cpus / "online")) or usable,
        cores=tuple(_cores(cpus, usable)),
        nodes={int(node.name.removeprefix("node")): parse_cpu_list(_read(node / "cpulist")) for node in nodes},
    )


def _cores(cpus: Path, usable: Iterable[int]) -> Iterable[tuple[int, ...]]:
    """The usable CPUs of each physical core; a CPU whose siblings are not known is a core of its own."""
    seen: set[int] = set()
    for cpu in sorted(usable):
        if cpu in seen:
            continue
        folder = cpus / f"cpu{cpu}" / "topology"
        siblings = parse_cpu_list(_read(folder / "core_cpus_list") or _read(folder / "thread_siblings_list")) or {cpu}
        core = tuple(sorted({cpu, *siblings} & set(usable)))
        seen.update(core)
        yield core


def gpu_localities(uuids: Collection[str], topology: CpuTopology, *, nvml: Any = None) -> dict[str, GpuLocality]:
    """What is near each of these GPUs (or MIG instances); never fails, see `GpuLocality.problem`."""
    with open_nvml(nvml) as opened:
        devices = {uuid: opened.device(uuid) if opened.opened.ok else None for uuid in uuids}
        unknown = GpuLocality(problem=opened.opened.reason or "NVML does not know this GPU")
        return {uuid: unknown if device is None else _locality(device, topology) for uuid, device in devices.items()}


def _locality(device: Device, topology: CpuTopology) -> GpuLocality:
    answer = device.gpu.ask("nvmlDeviceGetCpuAffinity", max(topology.online, default=0) // WORD_BITS + 1)
    words = enumerate(answer.value or ())
    cpus = frozenset(number * WORD_BITS + bit for number, word in words for bit in range(WORD_BITS) if word >> bit & 1)
    return GpuLocality(cpus, "NVML") if cpus else GpuLocality(problem=f"NVML: {answer.reason or 'no CPU'}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def parse_cpu_list(text: str) -> frozenset[int]:
    """The inverse; empty for text that is no list of CPUs."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


# ---- who gets which ----

UNBOUND = Placement()

LEAST_PART_OF_AN_EVEN_SHARE = 0.5
"""By default a process is bound to the CPUs near its GPU only where the allowed ones among them are at least this part
of what an even division over the nodes would give: a cgroup may leave two CPUs there and sixteen elsewhere."""


@dataclass(frozen=True)
class Placed:
    """The placements of a plan's processes, in their order, and the reason."""

    placements: tuple[Placement, ...]
    reason: str


Group = tuple[GpuRecord, ...]
"""The GPUs of one process; empty: it has none."""


def place(
    groups: Sequence[Group], bind: CpuBind, topology: CpuTopology | None, near: Mapping[str, GpuLocality]
) -> Placed:
    """Place processes.

    Args:
        groups: the GPUs of each process.
        bind: `none`; `numa`: all CPUs near one of its GPUs; `auto`: `numa` where that can only help, else `none`.
        topology: None where it could not be read.
        near: by UUID.

    Raises:
        UsageError: what was asked for by name cannot be done.
    """
    unbound = (UNBOUND,) * len(groups)
    if bind == "none" or topology is None:
        return Placed(unbound, "asked for" if bind == "none" else "the CPUs of this machine are not known")
    problem = _unknown(groups, topology, near)
    if bind == "numa" and problem is not None:
        raise UsageError(f"--cpu-bind numa: {problem}; drop --cpu-bind")
    if bind == "auto" and (reason := problem or _harm(groups, topology, near)):
        return Placed(unbound, f"not bound: {reason}")
    placements = [
        Placement(tuple(sorted(_local(group, topology, near))), f"all CPUs near {_its(group)} ({_source(group, near)})")
        for group in groups
    ]
    by_itself = "bound to the CPUs near the GPUs, for there are several nodes"
    return Placed(tuple(placements), "asked for" if bind == "numa" else by_itself)


def _its(group: Group) -> str:
    return "its GPU" if len(group) == 1 else "its GPUs"


def _named(group: Group) -> str:
    return f"GPU {group[0].index}" if len(group) == 1 else f"GPUs {', '.join(str(gpu.index) for gpu in group)}"


def _source(group: Group, near: Mapping[str, GpuLocality]) -> str:
    return ", ".join(dict.fromkeys(near[gpu.uuid].source for gpu in group))


def _unknown(groups: Sequence[Group], topology: CpuTopology, near: Mapping[str, GpuLocality]) -> str | None:
    """Why a process cannot be put near its GPUs."""
    if not all(groups):
        return "there is no GPU to be near to"
    for gpu in dict.fromkeys(gpu for group in groups for gpu in group):
        locality = near.get(gpu.uuid, GpuLocality(problem="not asked for"))
        if not locality.cpus:
            return f"which CPUs are near GPU {gpu.index} is not known ({locality.problem})"
        if not topology.cores_in(locality.cpus & topology.allowed):
            return f"none of the CPUs near GPU {gpu.index} ({cpu_list(locality.cpus)}) may be used here"
    return None


def _harm(groups: Sequence[Group], topology: CpuTopology, near: Mapping[str, GpuLocality]) -> str | None:
    """Why being near the GPUs does not help, or costs too many CPUs."""
    nodes = sum(bool(cpus & topology.allowed) for cpus in topology.nodes.values())
    if nodes < 2:
        return "all CPUs that may be used are of one memory node"
    for group in groups:
        cores = topology.cores_in(_local(group, topology, near))
        if group and len(cores) < LEAST_PART_OF_AN_EVEN_SHARE * len(topology.cores) / nodes:
            return f"of the CPUs near {_named(group)} only {len(cores)} cores may be used"
    return None


def _local(group: Group, topology: CpuTopology, near: Mapping[str, GpuLocality]) -> frozenset[int]:
    """Allowed CPUs near any of the GPUs; all allowed ones without a GPU, and where that is not known or has none."""
    found = [near.get(gpu.uuid, GpuLocality()).cpus & topology.allowed for gpu in group]
    return frozenset().union(*found) if found and all(found) else topology.allowed
