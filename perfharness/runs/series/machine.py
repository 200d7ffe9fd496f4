"""Find changes of the machine between launches: reference loop, steal time, GPU clocks, other GPU programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfharness.analysis.comparison.launches import alike_p_value
from perfharness.analysis.statistics import ALPHA
from perfharness.model.base import Record
from perfharness.model.conditions import MACHINE_LOAD, MachineLoad, condition
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.manifest import RunManifest
from perfharness.model.result import BENCHMARK_MEAN_NAME, Tree
from perfharness.runs.files.json_files import read_results
from perfharness.runs.files.run_folder import read_manifest

CLOCKS = ("sm_clock_mhz", "memory_clock_mhz")

LEAST = 0.02
"""Smaller changes are not reported, because they occur on an idle machine."""


@dataclass(frozen=True)
class LaunchConditions:
    """State of the machine during a launch.

    Args:
        gpu_users: names of other programs on the GPUs, one per process, or None if unknown.
        gpu_mhz: mean clocks over the measured window, by clock and GPU.
    """

    name: str
    load: MachineLoad | None
    gpu_users: Sequence[str] | None
    gpu_mhz: Mapping[str, float] = field(default_factory=dict)


class MachineChange(Record):
    """Change of one measure of the machine between launches.

    Attributes:
        measure: `loop_ms`, `steal_share`, a clock of a GPU, or `gpu_users`.
        by_launch: values by folder of the launch; None if unknown.
        relative: how much longer a program may take in the worst launch than in the best one; None if unknown.
        p_value: probability of the change on a steady machine, by the two readings per launch; None without them.
        worst: launch that the change slows down most.
        reason: sentence about the change.
    """

    measure: str
    by_launch: dict[str, float | None]
    relative: float | None
    p_value: float | None = None
    worst: str
    reason: str


def conditions_of(name: str, manifest: RunManifest, mean: Tree) -> LaunchConditions:
    """State of the machine during a launch; `mean` is the content of `benchmark_mean.json`."""
    metrics = mean.get("gpu_metrics") or {}
    clocks = {
        f"{clock} of GPU {gpu.get('gpu_index')}": ((gpu.get("figures") or {}).get(clock) or {}).get("mean")
        for gpu in metrics.get("gpus") or ()
        for clock in CLOCKS
    }
    return LaunchConditions(
        name,
        condition(manifest.companions, MACHINE_LOAD, MachineLoad),
        _gpu_users(manifest),
        {clock: float(mhz) for clock, mhz in clocks.items() if mhz},
    )


def _gpu_users(manifest: RunManifest) -> list[str] | None:
    """Other programs on the GPUs, or None if NVML did not list them."""
    gpus = (manifest.companions.get("exclusive") or {}).get("gpus")
    if not isinstance(gpus, list) or any(gpu.get("reason") for gpu in gpus):
        return None
    lists = [gpu.get(when) or () for gpu in gpus for when in ("foreign_before", "foreign_after")]
    by_pid = {user.get("pid"): str(user.get("name") or "a program without a name") for users in lists for user in users}
    return sorted(by_pid.values())


def changes_between(launches: Sequence[Path]) -> list[MachineChange]:
    """Changes of the machine between run folders. Raises `ResultError`."""
    folders = [folder.absolute() for folder in launches]
    above = os.path.commonpath([folder.parent for folder in folders])
    found = []
    for folder in folders:
        mean = read_results(folder / BENCHMARK_MEAN_NAME) or {}
        found.append(conditions_of(os.path.relpath(folder, above), read_manifest(folder), mean))
    return machine_changes(found)


def machine_changes(launches: Sequence[LaunchConditions]) -> list[MachineChange]:
    """Changes of the machine between launches, largest first."""
    found = list(_changes(launches))
    return sorted(found, key=lambda one: float("inf") if one.relative is None else one.relative, reverse=True)


def unsteady_findings(changes: Sequence[MachineChange], effect: float) -> list[Finding]:
    """Report changes of the machine that are larger than a relative effect."""
    large = [one for one in changes if one.relative is None or one.relative > max(LEAST, effect)]
    reasons = "; ".join(one.reason for one in large if one.p_value is None or one.p_value < ALPHA)
    message = f"The machine was unsteady: {reasons}."
    return [Finding("machine-noisy", Severity.WARNING, message, "Stop other programs and repeat.")] if reasons else []


def _changes(launches: Sequence[LaunchConditions]) -> Iterator[MachineChange]:
    loads = {one.name: one.load for one in launches}
    loops = {name: None if load is None else load.loop_ms for name, load in loads.items()}
    steal = {name: None if load is None else load.steal_share for name, load in loads.items()}
    pairs = [(load.loop_before.wall_ms, load.loop_after.wall_ms) for load in loads.values() if load is not None]
    p_value = alike_p_value([pair for pair in pairs if min(pair) > 0])
    text = "a reference loop took {low:.3g} to {high:.3g} ms"
    yield from _change("loop_ms", loops, text, p_value=p_value)
    yield from _change("steal_share", steal, "a hypervisor took {low:.1%} to {high:.1%} of the CPU time", is_share=True)
    for clock in dict.fromkeys(clock for one in launches for clock in one.gpu_mhz):
        values = {one.name: one.gpu_mhz.get(clock) for one in launches}
        yield from _change(clock, values, f"{clock} was {{low:.0f}} to {{high:.0f}} MHz", low_is_slow=True)
    yield from _users_change(launches)


def _change(
    measure: str,
    values: Mapping[str, float | None],
    text: str,
    *,
    p_value: float | None = None,
    is_share: bool = False,
    low_is_slow: bool = False,
) -> Iterator[MachineChange]:
    known = {name: value for name, value in values.items() if value is not None and (value or is_share)}
    if len(known) < 2:
        return
    low, high = min(known.values()), max(known.values())
    worst = (min if low_is_slow else max)(known, key=lambda name: known[name])
    yield MachineChange(
        measure=measure,
        by_launch=dict(values),
        relative=round(high - low if is_share else high / low - 1, 6),
        p_value=p_value,
        worst=worst,
        reason=f"{text.format(low=low, high=high)} (worst in {worst})",
    )


def _users_change(launches: Sequence[LaunchConditions]) -> Iterator[MachineChange]:
    known = {one.name: one.gpu_users for one in launches if one.gpu_users is not None}
    if len({tuple(sorted(users)) for users in known.values()}) < 2:
        return
    low, worst = min(map(len, known.values())), max(known, key=lambda name: len(known[name]))
    names = listed(list(dict.fromkeys(known[worst])), most=3)
    yield MachineChange(
        measure="gpu_users",
        by_launch={one.name: None if one.gpu_users is None else float(len(one.gpu_users)) for one in launches},
        relative=None,
        worst=worst,
        reason=f"{low} to {len(known[worst])} other programs were on the GPUs (most in {worst}: {names})",
    )
