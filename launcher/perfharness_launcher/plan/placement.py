"""Which CPUs each process of a plan gets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.plan.options import CpuBind
from perfharness_launcher.plan.topology import CpuTopology, GpuLocality
from perfharness_launcher.processes.spawn import Placement, cpu_list

UNBOUND = Placement()

LEAST_PART_OF_AN_EVEN_SHARE = 0.5
"""By default a process is bound to the CPUs near its GPU only where the allowed ones among them are at least this part
of what an even division over the nodes would give: a cgroup may leave two CPUs there and sixteen elsewhere."""


@dataclass(frozen=True)
class Placed:
    """The placements of a plan's processes, in their order, and the reason."""

    placements: tuple[Placement, ...]
    reason: str


def place(
    gpus: Sequence[GpuRecord | None], bind: CpuBind, topology: CpuTopology | None, near: Mapping[str, GpuLocality]
) -> Placed:
    """Place processes.

    Args:
        gpus: of each process; None: it has none.
        bind: `none`; `numa`: all CPUs near the GPU; `cores`: these divided among the processes that share them, in
            whole physical cores; `auto`: `numa` where that can only help, else `none`.
        topology: None where it could not be read.
        near: by UUID.

    Raises:
        UsageError: what was asked for by name cannot be done.
    """
    unbound = (UNBOUND,) * len(gpus)
    if bind == "none" or topology is None:
        return Placed(unbound, "asked for" if bind == "none" else "the CPUs of this machine are not known")
    if bind == "cores":
        return Placed(_by_cores(gpus, topology, near), "asked for")
    problem = _unknown(gpus, topology, near)
    if bind == "numa" and problem is not None:
        raise UsageError(f"--cpu-bind numa: {problem}; leave it away, or take --cpu-bind cores")
    if bind == "auto" and (reason := problem or _harm(gpus, topology, near)):
        return Placed(unbound, f"not bound: {reason}")
    placements = [
        Placement(tuple(sorted(_local(gpu, topology, near))), f"all CPUs near its GPU ({near[gpu.uuid].source})")
        for gpu in gpus
        if gpu is not None
    ]
    by_itself = "bound to the CPUs near the GPUs, for there are several nodes"
    return Placed(tuple(placements), "asked for" if bind == "numa" else by_itself)


def _unknown(gpus: Sequence[GpuRecord | None], topology: CpuTopology, near: Mapping[str, GpuLocality]) -> str | None:
    """Why a process cannot be put near its GPU."""
    for gpu in gpus:
        if gpu is None:
            return "there is no GPU to be near to"
        locality = near.get(gpu.uuid, GpuLocality(problem="not asked for"))
        if not locality.cpus:
            return f"which CPUs are near GPU {gpu.index} is not known ({locality.problem})"
        if not topology.cores_in(locality.cpus & topology.allowed):
            return f"none of the CPUs near GPU {gpu.index} ({cpu_list(locality.cpus)}) may be used here"
    return None


def _harm(gpus: Sequence[GpuRecord | None], topology: CpuTopology, near: Mapping[str, GpuLocality]) -> str | None:
    """Why being near the GPUs does not help, or costs too many CPUs."""
    nodes = sum(bool(cpus & topology.allowed) for cpus in topology.nodes.values())
    if nodes < 2:
        return "all CPUs that may be used are of one memory node"
    for gpu in gpus:
        cores = topology.cores_in(_local(gpu, topology, near))
        if gpu is not None and len(cores) < LEAST_PART_OF_AN_EVEN_SHARE * len(topology.cores) / nodes:
            return f"of the CPUs near GPU {gpu.index} only {len(cores)} cores may be used"
    return None


def _local(gpu: GpuRecord | None, topology: CpuTopology, near: Mapping[str, GpuLocality]) -> frozenset[int]:
    """Allowed CPUs near the GPU; all allowed ones where there is none, or it is not known, or none is allowed."""
    locality = near.get(gpu.uuid, GpuLocality()) if gpu is not None else GpuLocality()
    return (locality.cpus & topology.allowed) or topology.allowed


def _by_cores(
    gpus: Sequence[GpuRecord | None], topology: CpuTopology, near: Mapping[str, GpuLocality]
) -> tuple[Placement, ...]:
    """Equal parts: processes with more cores than others would be no fair comparison; what is left over stays free."""
    local = [_local(gpu, topology, near) for gpu in gpus]
    sharers = Counter(local)
    taken: Counter[frozenset[int]] = Counter()
    found = []
    for gpu, cpus in zip(gpus, local, strict=True):
        cores = topology.cores_in(cpus)
        each = len(cores) // sharers[cpus]
        if each == 0:
            raise UsageError(
                f"--cpu-bind cores: {sharers[cpus]} processes share {len(cores)} physical cores"
                f" (CPUs {cpu_list(cpus)}), which is less than one each; take fewer processes (-np) or --cpu-bind numa"
            )
        own = cores[each * taken[cpus] :][:each]
        taken[cpus] += 1
        where = "near its GPU" if gpu is not None and near.get(gpu.uuid, GpuLocality()).cpus else "of this machine"
        how = f"{each} of the {len(cores)} cores {where} for each of {sharers[cpus]} processes"
        found.append(Placement(tuple(sorted(cpu for core in own for cpu in core)), how))
    return tuple(found)
