"""Remarks on a comparison: the machine, the launches, the base, and the result of its advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import fmean

import numpy as np

from perfharness.analysis.comparison.compare import Judgement, Pair, Rule, compare
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.result import path_text
from perfharness.runs.comparison.conclusion import measure_again
from perfharness.runs.comparison.launches import figures_of, promises_of, values_of
from perfharness.runs.comparison.match import MatchedSides
from perfharness.runs.comparison.result import ComparedRow, GradedAdvice
from perfharness.runs.figures import ACCURACY, Figure
from perfharness.runs.series.machine import machine_changes, unsteady_findings

FEW_LAUNCHES = 3
"""With fewer launches per side, intervals are too wide for most verdicts."""

OLD_DAYS = 30
"""An older base is reported."""

STAGE_TIMES = ("cpu_time_per_item", "cpu_time")
END_OF_STEP = re.compile(r"[:;.(]|, or ")
"""End of the first suggestion in a step."""


def judged_machine(matched: MatchedSides) -> Judgement | None:
    """Compare the reference loops around the launches of both sides; None if not timed."""
    base, new = (
        np.asarray([one.conditions.load.loop_ms for one in side.used if one.conditions and one.conditions.load])
        for side in (matched.base, matched.new)
    )
    return compare([Pair(base, new)], Rule())[0] if len(base) > 1 and len(new) > 1 else None


def machine_remarks(matched: MatchedSides, rows: Sequence[ComparedRow], machine: Judgement | None) -> Iterator[str]:
    """Report changes of the machine: of its speed, and any beyond the smallest proven change."""
    if machine is not None and machine.direction in ("up", "down") and machine.ratio and machine.interval:
        yield (
            f"The machine itself was {'slower' if machine.direction == 'up' else 'faster'} with {matched.new.name}: "
            f"the time of a reference loop changed by {machine.ratio - 1:+.1%} "
            f"({machine.interval.low - 1:+.1%} … {machine.interval.high - 1:+.1%})."
        )
    claimed = [abs(row.ratio - 1) for row in rows if row.is_proven and row.ratio is not None]
    conditions = [one.conditions for one in (*matched.base.used, *matched.new.used) if one.conditions is not None]
    if claimed and len(conditions) > 1:
        yield from (one.message for one in unsteady_findings(machine_changes(conditions), min(claimed)))


def accuracy_remarks(matched: MatchedSides) -> Iterator[str]:
    """Report accuracies whose means differ. With the same samples, this is not random."""
    changed = []
    for figure in figures_of(matched.base.used):
        if figure.path[-1:] != (ACCURACY,):
            continue
        values = values_of(matched.base.used, figure)
        new_values = values_of(matched.new.used, matched.new_figure(figure))
        if values and new_values and np.mean(values) != np.mean(new_values):
            changed.append(f"{figure.stage}/{figure.metric} {np.mean(values):.6g} → {np.mean(new_values):.6g}")
    if changed:
        yield f"The accuracy changed: {listed(changed, 8, '; ')}."


def items_remarks(matched: MatchedSides) -> Iterator[str]:
    """Report batches of different size, whose times per batch are not compared."""
    for path in dict.fromkeys(path for launch in matched.new.used for path in launch.batches):
        if (unlike := matched.unlike_items(path)) is not None:
            yield (
                f"{path_text(path)} has {unlike[1]:.4g} items per batch, {unlike[0]:.4g} before: "
                "times per batch are not compared."
            )


def launch_remarks(matched: MatchedSides, *, allows_drift: bool) -> Iterator[str]:
    """Report launches that are unusable, doubtful, few, or not in turns."""
    for side in (matched.base, matched.new):
        left_out = [launch for launch in side.launches if launch.problem is not None]
        if left_out:
            yield (
                f"{len(left_out)} of {len(side.launches)} launches of {side.name} are not used: "
                f"{left_out[0].folder}: {left_out[0].problem}."
            )
        if doubtful := [launch for launch in side.used if launch.errors]:
            yield f"Numbers of {doubtful[0].folder} may be wrong: {', '.join(doubtful[0].errors)}."
        if 1 < len(side.used) < FEW_LAUNCHES:
            yield f"{side.name} has {len(side.used)} launches; most verdicts need at least {FEW_LAUNCHES}."
    if allows_drift:
        yield "The sides were not measured in turns: intervals are wider, because the machine may have drifted."
    if matched.order == "unknown" and len(matched.base.used) > 1:
        yield "The order of the launches is unknown, so intervals do not include a drift of the machine."
    same = {launch.run_id for launch in matched.base.used} & {one.run_id for one in matched.new.used}
    if same:
        yield f"Launches on both sides: {len(same)}. A launch does not differ from itself."


def base_findings(matched: MatchedSides) -> Iterator[Finding]:
    """Report a base that is old or was measured with a different driver or GPU."""
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
            message = f"{matched.base.name} was measured with a different {what}: {was}, now {now}."
            yield Finding(f"other-{name}", Severity.WARNING, message, hint)


def graded_advice(matched: MatchedSides, rows: Sequence[ComparedRow]) -> Iterator[GradedAdvice]:
    """First advice of the base for each stage, with the time saved in the new version."""
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
