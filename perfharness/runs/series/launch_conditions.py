"""What is known about the machine during one launch: its load, clocks, and other users of the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfharness.model.conditions import MACHINE_LOAD, MachineLoad, condition
from perfharness.model.manifest import RunManifest
from perfharness.model.result import Tree

CLOCKS = ("sm_clock_mhz", "memory_clock_mhz")


@dataclass(frozen=True)
class LaunchConditions:
    """What is known about the machine during one launch."""

    name: str
    load: MachineLoad | None
    gpu_users: Sequence[str] | None
    """Names of the other programs on the GPUs, one a process; None: not known."""

    gpu_mhz: Mapping[str, float] | None = None
    """Mean clocks over the measured window, by GPU and clock."""


def conditions_of(name: str, manifest: RunManifest, mean: Tree) -> LaunchConditions:
    """What is known about the machine during a launch.

    Args:
        mean: as in `benchmark_mean.json`.
    """
    metrics = mean.get("gpu_metrics") or {}
    return LaunchConditions(
        name=name,
        load=condition(manifest.companions, MACHINE_LOAD, MachineLoad),
        gpu_users=_users(manifest),
        gpu_mhz={
            f"{clock} of GPU {gpu.get('gpu_index')}": value
            for gpu in metrics.get("gpus") or ()
            for clock in CLOCKS
            if (value := _mean(gpu.get("figures") or {}, clock))
        },
    )


def _mean(figures: Tree, name: str) -> float | None:
    found = (figures.get(name) or {}).get("mean")
    return float(found) if isinstance(found, int | float) else None


def _users(manifest: RunManifest) -> list[str] | None:
    """Other programs on the GPUs of a launch, by name; None where NVML did not list them."""
    gpus = (manifest.companions.get("exclusive") or {}).get("gpus")
    if not isinstance(gpus, list):
        return None
    if any(gpu.get("reason") for gpu in gpus):
        return None
    listed = _listed(gpus, "foreign_before", "foreign_after")
    return sorted({user.get("pid"): str(user.get("name") or "a program without a name") for user in listed}.values())


def _listed(gpus: Sequence[Tree], *lists: str) -> list[Tree]:
    return [user for gpu in gpus for name in lists for user in gpu.get(name) or ()]
