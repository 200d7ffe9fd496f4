"""Which CPUs there are, which of them the launch may use (from /sys), and which are near a GPU (from NVML)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.telemetry.nvml import Device, open_nvml

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
