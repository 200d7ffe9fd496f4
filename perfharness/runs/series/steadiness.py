"""Was the machine the same for all launches? By its load, a reference loop, clocks and other users of the GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfharness.analysis.comparison.launches import alike_p_value
from perfharness.analysis.statistics import ALPHA
from perfharness.model.base import Record
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import BENCHMARK_MEAN_NAME
from perfharness.runs.files.json_files import read_results
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.series.launch_conditions import LaunchConditions, conditions_of

LEAST = 0.02
"""A measure that moved by less is not reported: so much do readings differ on a machine that does nothing else."""

NAMED = 3
"""Other processes that are named."""


class Movement(Record):
    """One measure over launches."""

    measure: str
    """`loop_ms`, `steal_share`, a clock of a GPU, or `gpu_users`."""

    by_launch: dict[str, float | None]
    """By the launches' folders; None: not known there."""

    relative: float | None
    """How much longer a program may take in the worst launch than in the best one, if all that moved were taken from
    it; None: it moved, and how far that reaches is not known.
    """

    p_alike: float | None = None
    """Of `loop_ms`: how probable such a movement is on a machine that is the same for all launches, by how far the two
    readings of a launch differ; None: not read twice a launch.
    """

    worst: str | None
    """The launch in which it slows a program down most."""

    reason: str
    """A sentence: what moved, from where to where."""


class Unsteadiness(Record):
    """What moved on the machine between launches, the largest movement first."""

    movements: list[Movement]
    missing: list[str]
    """Launches without a reference loop."""

    @property
    def relative(self) -> float | None:
        """The largest known movement; 0 where nothing moved; None where nothing is known."""
        sizes = [one.relative for one in self.movements if one.relative is not None]
        return max(sizes, default=None)

    def beyond(self, effect: float) -> list[Movement]:
        """What moved by more than an effect that is claimed, as a part of the whole; and what has no size."""
        least = max(LEAST, effect)
        return [
            one
            for one in self.movements
            if (one.relative is None or one.relative > least) and (one.p_alike is None or one.p_alike < ALPHA)
        ]


def unsteadiness(launches: Sequence[Path]) -> Unsteadiness:
    """What moved on the machine between launches, of one side of a comparison or of both.

    Raises `ResultError` where one is no run folder, or its manifest is damaged.
    """
    names = _names(launches)
    return movements_of(
        [
            conditions_of(name, read_manifest(folder), read_results(folder / BENCHMARK_MEAN_NAME) or {})
            for folder, name in zip(launches, names, strict=True)
        ]
    )


def movements_of(launches: Sequence[LaunchConditions]) -> Unsteadiness:
    """The same for what is known about each launch."""
    missing = [one.name for one in launches if one.load is None]
    found = [one for one in _movements(launches) if len(launches) > 1]
    found.sort(key=lambda one: float("inf") if one.relative is None else one.relative, reverse=True)
    return Unsteadiness(movements=found, missing=missing)


def unsteady_findings(moved: Unsteadiness, effect: float, claim: str) -> list[Finding]:
    """A finding where the machine moved by more than what is claimed.

    Args:
        effect: its size, as a part of the whole.
        claim: what it is, after `more than`: "the interval of ±1.2 %".
    """
    beyond = moved.beyond(effect)
    if not beyond:
        return []
    reasons = "; ".join(one.reason for one in beyond)
    return [
        Finding(
            "machine-unsteady",
            Severity.WARNING,
            f"The machine was not the same for all launches, by more than {claim}: {reasons}",
            "stop what else runs, and repeat; or read the times as those of a busy machine",
        )
    ]


def _movements(launches: Sequence[LaunchConditions]) -> Iterator[Movement]:
    loads = {one.name: one.load for one in launches}
    loops = {name: None if load is None else load.loop_ms for name, load in loads.items()}
    pairs = [(load.loop_before.wall_ms, load.loop_after.wall_ms) for load in loads.values() if load is not None]
    p_alike = alike_p_value([pair for pair in pairs if min(pair) > 0])
    for one in _ratio("loop_ms", loops, "a reference loop before and after took {low:.2f} to {high:.2f} ms a turn"):
        yield one.model_copy(update={"p_alike": p_alike})
    steal = {name: None if load is None else load.steal_share for name, load in loads.items()}
    yield from _difference("steal_share", steal, "a hypervisor took {low:.1%} to {high:.1%} of the CPU time")
    for clock in dict.fromkeys(clock for one in launches for clock in one.gpu_mhz or ()):
        values = {one.name: (one.gpu_mhz or {}).get(clock) for one in launches}
        yield from _ratio(clock, values, f"{clock} was {{low:.0f}} to {{high:.0f}} MHz", slow_is_high=False)
    yield from _gpu_users(launches)


def _gpu_users(launches: Sequence[LaunchConditions]) -> Iterator[Movement]:
    """Other programs on the GPUs of some of the launches, or others in each."""
    known = {one.name: one.gpu_users for one in launches if one.gpu_users is not None}
    if len({tuple(sorted(users)) for users in known.values()}) < 2:
        return
    low, worst = min(map(len, known.values())), max(known, key=lambda name: len(known[name]))
    listed = ", ".join(list(dict.fromkeys(known[worst]))[:NAMED])
    counts = {one.name: None if one.gpu_users is None else float(len(one.gpu_users)) for one in launches}
    yield Movement(
        measure="gpu_users",
        by_launch=counts,
        relative=None,
        worst=worst,
        reason=f"{low} to {len(known[worst])} other programs were on the GPUs (most in {worst}: {listed})",
    )


def _ratio(
    measure: str, values: Mapping[str, float | None], text: str, *, slow_is_high: bool = True
) -> Iterator[Movement]:
    known = {name: value for name, value in values.items() if value}
    if len(known) >= 2:
        yield _movement(measure, values, max(known.values()) / min(known.values()) - 1, text, slow_is_high=slow_is_high)


def _difference(measure: str, values: Mapping[str, float | None], text: str) -> Iterator[Movement]:
    known = [value for value in values.values() if value is not None]
    if len(known) >= 2:
        yield _movement(measure, values, max(known) - min(known), text)


def _movement(
    measure: str, values: Mapping[str, float | None], relative: float, text: str, *, slow_is_high: bool = True
) -> Movement:
    known = {name: value for name, value in values.items() if value is not None}
    worst = (max if slow_is_high else min)(known, key=lambda name: known[name])
    return Movement(
        measure=measure,
        by_launch=dict(values),
        relative=round(relative, 6),
        worst=worst,
        reason=f"{text.format(low=min(known.values()), high=max(known.values()))} (worst in {worst})",
    )


def _names(launches: Sequence[Path]) -> list[str]:
    """Names that differ: as short as they can be."""
    folders = [folder.absolute() for folder in launches]
    if len(folders) < 2:
        return [folder.name for folder in folders]
    above = os.path.commonpath([folder.parent for folder in folders])
    return [os.path.relpath(folder, above) for folder in folders]
