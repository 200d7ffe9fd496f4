"""What a reader of a comparison must know: the machine, the launches, the base, and what came of its advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import fmean

import numpy as np

from perfharness.analysis.comparison.compare import Judgement, Pair, Rule, compare
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import path_text
from perfharness.runs.comparison.conclusion import measure_again
from perfharness.runs.comparison.launches import LaunchFigures, figures_of, promises_of, values_of
from perfharness.runs.comparison.match import MatchedSides
from perfharness.runs.comparison.result import ComparedRow, GradedAdvice
from perfharness.runs.figures import ACCURACY, Figure
from perfharness.runs.series.machine import machine_changes, unsteady_findings

LISTED = 8
"""Metrics of accuracy that a remark names."""

FEW_LAUNCHES = 3
"""With fewer a side an interval is so wide that hardly anything is decided."""

OLD_DAYS = 30
"""A base that is older has a finding."""

STAGE_TIMES = ("cpu_time_per_item", "cpu_time")
END_OF_STEP = re.compile(r"[:;.(]|, or ")
"""Where the first suggestion of a step ends."""


def judged_machine(matched: MatchedSides) -> Judgement | None:
    """The reference loop around the launches, of the new version against the base; None where it was not timed."""
    base, new = (np.asarray(_loop_times(side.used)) for side in (matched.base, matched.new))
    return compare([Pair(base, new)], Rule())[0] if len(base) > 1 and len(new) > 1 else None


def _loop_times(launches: Sequence[LaunchFigures]) -> list[float]:
    loads = [launch.conditions.load for launch in launches if launch.conditions is not None]
    return [load.loop_ms for load in loads if load is not None]


def machine_remarks(matched: MatchedSides, rows: Sequence[ComparedRow], machine: Judgement | None) -> Iterator[str]:
    """Whether the machine itself was faster or slower, and what moved by more than the smallest change claimed."""
    if machine is not None and machine.direction in ("up", "down") and machine.ratio and machine.interval:
        yield (
            f"The machine itself was {'slower' if machine.direction == 'up' else 'faster'} with {matched.new.name}: "
            f"a reference loop, timed before and after each launch, took {machine.ratio - 1:+.1%} "
            f"({machine.interval.low - 1:+.1%} … {machine.interval.high - 1:+.1%})."
        )
    claimed = [abs(row.ratio - 1) for row in rows if row.is_proven and row.ratio is not None]
    conditions = [one.conditions for one in (*matched.base.used, *matched.new.used) if one.conditions is not None]
    if claimed and len(conditions) > 1:
        yield from (one.message for one in unsteady_findings(machine_changes(conditions), min(claimed)))


def accuracy_remarks(matched: MatchedSides) -> Iterator[str]:
    """Metrics of accuracy whose means differ: of the same samples they are no matter of chance."""
    changed = []
    for figure in figures_of(matched.base.used):
        if figure.path[-1:] != (ACCURACY,):
            continue
        values = values_of(matched.base.used, figure)
        new_values = values_of(matched.new.used, matched.new_figure(figure))
        if values and new_values and np.mean(values) != np.mean(new_values):
            changed.append(f"{figure.stage}/{figure.metric} {np.mean(values):.6g} → {np.mean(new_values):.6g}")
    if changed:
        more = f"; and {len(changed) - LISTED} more" if len(changed) > LISTED else ""
        yield f"The accuracy is not the same: {'; '.join(changed[:LISTED])}{more}."


def items_remarks(matched: MatchedSides) -> Iterator[str]:
    """Batches of another size, whose times per batch are not compared."""
    for path in dict.fromkeys(path for launch in matched.new.used for path in launch.batches):
        if (unlike := matched.unlike_items(path)) is not None:
            yield (
                f"{path_text(path)} has {unlike[1]:.4g} items per batch, {unlike[0]:.4g} before: throughput and times "
                "per item are compared, times per batch are not."
            )


def launch_remarks(matched: MatchedSides, *, allows_drift: bool) -> Iterator[str]:
    """Launches that are left out, in doubt, few, or not in turns."""
    for side in (matched.base, matched.new):
        left_out = [launch for launch in side.launches if launch.problem is not None]
        if left_out:
            yield (
                f"{len(left_out)} of {len(side.launches)} launches of {side.name} are left out: "
                f"{left_out[0].folder}: {left_out[0].problem}"
            )
        if doubtful := [launch for launch in side.used if launch.errors]:
            yield f"numbers of {doubtful[0].folder} are in doubt: {', '.join(doubtful[0].errors)}"
        if 1 < len(side.used) < FEW_LAUNCHES:
            few = f"{side.name} has {len(side.used)} launches"
            yield f"{few}; with fewer than {FEW_LAUNCHES} hardly anything can be decided"
    if allows_drift:
        yield "One side was measured after the other: the intervals are wider, as the machine may have drifted."
    if matched.order == "unknown" and len(matched.base.used) > 1:
        yield "When the launches were started is not known, so a drift of the machine cannot be allowed for."
    same = {launch.run_id for launch in matched.base.used} & {one.run_id for one in matched.new.used}
    if same:
        yield f"Launches that are on both sides: {len(same)}; what is compared with itself does not differ."


def base_findings(matched: MatchedSides) -> Iterator[Finding]:
    """A base that is old, or of another driver or GPU."""
    hint = measure_again(matched)
    created, new_created = (
        [datetime.fromisoformat(launch.created) for launch in side.used if launch.created]
        for side in (matched.base, matched.new)
    )
    days = (min(new_created) - max(created)).days if created and new_created else 0
    if days > OLD_DAYS:
        message = f"{matched.base.name} was measured {days} days before {matched.new.name}."
        yield Finding("old-baseline", Severity.WARNING, message, hint)
    for name, what in (("driver", "driver"), ("gpu", "GPU")):
        one = next((one for one in matched.differences if one.name == name and not one.allowed), None)
        if one is not None and None not in (*one.base, *one.new):
            was, now = (" or ".join(map(str, values)) for values in (one.base, one.new))
            message = f"{matched.base.name} was measured with another {what}: {was}, now {now}."
            yield Finding(f"other-{name}", Severity.WARNING, message, hint)


def graded_advice(matched: MatchedSides, rows: Sequence[ComparedRow]) -> Iterator[GradedAdvice]:
    """The first advice for each stage by the base, and how much less time the stage takes in the new version."""
    promises = next(filter(None, (promises_of(launch.folder) for launch in matched.base.used)), [])
    first = {promise.path: promise for promise in reversed(promises)}
    proven = {row.stage for row in rows if row.metric in STAGE_TIMES and row.is_proven}
    for one in promises:
        if first[one.path] is not one:
            continue
        figure = Figure(one.path, "cpu_time")
        before = values_of(matched.base.used, figure)
        after = values_of(matched.new.used, matched.new_figure(figure))
        if before and after and one.cause.saves_ms is not None:
            yield GradedAdvice(
                stage=figure.stage,
                cause=one.cause.code.value,
                advice=END_OF_STEP.split(one.cause.step)[0],
                promised_ms=one.cause.saves_ms,
                got_ms=fmean(before) - fmean(after),
                is_proven=figure.stage in proven,
            )
