"""Which stage spent the energy: steps of a sensor explained by what the GPU was busy with in them.

Every moment belongs to one class: a stage, GPU work outside of stages, or none of it ("waiting"). Every model and
every response of the sensor that the readings do not rule out (`fits`) gives each class an energy; the interval holds
all of them. A class whose interval is wide has no number, only bounds. docs/guides/energy.md derives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfharness.analysis.energy.fits import HIGHEST_W, Fit
from perfharness.analysis.energy.kinds import BusyShares, KnownWork
from perfharness.analysis.energy.results import AttributionMethod, JointEnergy, StageAttribution, StageEnergy
from perfharness.analysis.energy.sensors import MIN_UPDATES, Explained
from perfharness.analysis.energy.steps import NS_PER_MS, NS_PER_S, Energy, Steps, per, rounded
from perfharness.analysis.statistics import student_t
from perfharness.model.rounding import figure
from perfharness.model.trace import Int64

WAITING = "waiting"
"""The class of all time in which the GPU ran nothing that is in a trace."""

IDLE_FLOOR = 0.9
"""Less than this part of its idle power before the run a GPU does not draw: it was idle then, and is warmer now."""

WIDEST = 2.0
"""An interval whose upper end is more than so many times its lower one (a third either way) holds no number."""

BEFORE_PERIODS = 2.0
AFTER_PERIODS = 0.5
"""No traced work so far before a step and after it: as late, and as early, as sensors are taken to be."""

PARTS = 3
"""A step is needed in each of so many equal parts of the window: power between kernels changes with temperature."""

BLOCKS = 10


def attribute(
    steps: Steps | str,
    names: Sequence[str],
    busy: BusyShares,
    window: tuple[int, int],
    *,
    idle_w: float | None = None,
    limit_w: float | None = None,
    explained: Explained | None = None,
    source: str | None = None,
    counts: tuple[int, float | None] = (0, None),
) -> StageAttribution:
    """Energy of each class in a window of time, "waiting" last.

    Args:
        steps: of the energy counter, or of integrated power.
        names: of the classes.
        busy: when each of them was at work.
        window: UTC ns.
        idle_w, limit_w: between which the GPU's power must lie; None: not known.
        explained: the steps over the window, where it is known.
        source: metric of the steps.
        counts: batches and items whose energy it is.
    """
    busy_s = busy.within(np.asarray([window[0]]), np.asarray([window[1]]))[:, 0].tolist()
    seconds = (window[1] - window[0]) / NS_PER_S
    classes = [*zip(names, busy_s, strict=True), (WAITING, max(seconds - sum(busy_s), 0.0))]
    low_w = IDLE_FLOOR * (idle_w or 0.0)
    inside = np.empty(0, dtype=np.int64)
    reason: str | None = None
    if isinstance(steps, str):
        reason = steps
    else:
        inside = steps.inside(window)
        if len(inside) < MIN_UPDATES:
            reason = f"the sensor moved {len(inside)} times in the window; {MIN_UPDATES} are needed"
        else:
            explained = explained or Explained(steps, window, KnownWork(busy), low_w=low_w, high_w=limit_w)
            reason = None if explained.total.joules is not None else explained.total.reason
    joules: float | None = None
    response, joint, awake = None, [], Energy(None, reason=reason)
    if reason is not None or isinstance(steps, str) or explained is None:
        found = [_stage(name, seconds, "none", reason=reason) for name, seconds in classes]
    elif not any(busy_s):
        total = explained.total
        joules, found = total.joules, [_stage(name, 0.0, "no_gpu_work", (0.0, 0.0, 0.0)) for name in names]
        assert joules is not None
        assert total.error_j is not None
        estimates = joules, joules - total.error_j, joules + total.error_j
        found.append(_stage(*classes[-1], "regression", estimates))
        awake = _awake(Energy(None), found[-1])
    else:
        fits = [fit for fit in explained.fits if fit.kinds.name != "batch"]
        joules, response = float(fits[0].found.value @ fits[0].kinds.seconds), fits[0].response
        between = (low_w, limit_w or HIGHEST_W)
        found = [_of_class(name, length, fits, at, between) for at, (name, length) in enumerate(classes)]
        joint = _joint(fits, found)
        reach = (response.duty - 1.0) * steps.period_ns + 3 * response.smoothed_ns
        awake = _awake(awake_power(steps, inside, busy, max(reach, 0.0)), found[-1])
    awake_w, period_ms = awake.mean_power_w, 0.0 if isinstance(steps, str) else steps.period_ns / NS_PER_MS
    return StageAttribution(
        source=source,
        energy_j=rounded(joules),
        seconds=rounded(seconds),
        steps=len(inside),
        sensor_lag_ms=None if response is None else round(int(response.lag_ns) / NS_PER_MS, 3),
        sensor_window_ms=None if response is None else round(response.duty * period_ms, 3),
        sensor_smoothed_ms=None if response is None else round(response.smoothed_ns / NS_PER_MS, 3),
        stages=[_finished(one, idle_w, awake_w, *counts) for one in found],
        joint=[replace(one, energy_above_awake_j=_above(one.energy_j, one.busy_s, awake_w)) for one in joint],
        awake=awake.as_power(source),
        reason=reason,
    )


def _stage(
    name: str,
    busy_s: float,
    method: AttributionMethod,
    estimates: tuple[float | None, float | None, float | None] = (None, None, None),
    reason: str | None = None,
) -> StageEnergy:
    """A class with its energy and the ends of its interval; what follows from them comes with `_finished`."""
    return StageEnergy(name, busy_s, method, *estimates, None, None, None, None, None, [], reason)


def _finished(
    one: StageEnergy, idle_w: float | None, awake_w: float | None, batches: int, items: float | None
) -> StageEnergy:
    joules = one.energy_j
    return replace(
        one,
        busy_s=figure(one.busy_s),
        energy_j=rounded(joules),
        energy_j_low=rounded(one.energy_j_low),
        energy_j_high=rounded(one.energy_j_high),
        energy_above_idle_j=_above(joules, one.busy_s, idle_w),
        energy_above_awake_j=_above(joules, one.busy_s, awake_w),
        power_mean_w=per(joules, one.busy_s),
        energy_per_batch_j=per(joules, batches),
        energy_per_item_j=per(joules, items),
    )


def _above(joules: float | None, seconds: float, watts: float | None) -> float | None:
    """What is left of an energy without a power over that time."""
    return None if joules is None or watts is None else rounded(joules - watts * seconds)


def _of_class(name: str, busy_s: float, fits: Sequence[Fit], at: int, between_w: tuple[float, float]) -> StageEnergy:
    """A number where its interval is narrow enough to be one, else what is possible."""
    if busy_s <= 0:
        return _stage(name, 0.0, "no_gpu_work", (0.0, 0.0, 0.0))
    value, low, high = _between(fits, [at])
    floor, ceiling = (watts * busy_s for watts in between_w)
    if high < floor or low > ceiling:
        why = f"the steps of the sensor ask for {value / busy_s:.0f} W, which the GPU cannot draw"
        return _stage(name, busy_s, "none", reason=why)
    low, high = max(low, floor), min(high, ceiling)
    if low <= value <= high and high <= WIDEST * low:
        return _stage(name, busy_s, "regression", (value, low, high))
    why = (
        f"the sensor's readings fit anything from {low / busy_s:.0f} to {high / busy_s:.0f} W: its work rises and "
        "falls with other work, or its power depends on more than the stage"
    )
    return _stage(name, busy_s, "bounds", (None, low, high), why)


def _awake(quiet: Energy, waiting: StageEnergy) -> Energy:
    """Where no time was quiet enough, waiting that is separable gives the same."""
    if quiet.joules is not None or waiting.energy_j is None:
        return quiet
    assert waiting.energy_j_low is not None
    assert waiting.energy_j_high is not None
    return Energy(waiting.energy_j, (waiting.energy_j_high - waiting.energy_j_low) / 2, waiting.busy_s)


def _between(fits: Sequence[Fit], owners: Sequence[int]) -> tuple[float, float, float]:
    """Energy of some classes together: of the best fit, and the interval that holds those of all fits."""
    estimates = [fit.energy(fit.seconds_of(owners)) for fit in fits]
    return (
        estimates[0][0],
        min(value - half for value, half in estimates),
        max(value + half for value, half in estimates),
    )


def _joint(fits: Sequence[Fit], found: list[StageEnergy]) -> list[JointEnergy]:
    """The classes without numbers of their own, together."""
    mine = [at for at, one in enumerate(found) if one.method == "bounds"]
    if len(mine) < 2:
        return []
    names = [found[at].stage for at in mine]
    for at in mine:
        found[at] = replace(found[at], together=[name for name in names if name != found[at].stage])
    value, low, high = (figure(joules) for joules in _between(fits, mine))
    return [JointEnergy(names, figure(sum(found[at].busy_s for at in mine)), value, low, high, None)]


def awake_power(steps: Steps, inside: Int64, busy: BusyShares, beyond_ns: float) -> Energy:
    """Energy of the steps in whose neighbourhood no traced work ran, from which awake power follows; or why not known.

    Awake and doing nothing (clocks up, a context there, between kernels) is not idle: an unused H200 drew
    81 W at 345 MHz before a run, and 123 W at 1980 MHz between its kernels (docs/guides/energy.md).

    The error is from means of ten successive blocks of these steps (batch means), so that drift is in it.

    Args:
        steps: of a sensor.
        inside: numbers of those in the window.
        busy: traced work.
        beyond_ns: how much further back than its period a value reaches.
    """
    reach = BEFORE_PERIODS * steps.period_ns + beyond_ns
    start = steps.edge_ns[inside] - round(reach)
    end = steps.edge_ns[inside + 1] + round(AFTER_PERIODS * steps.period_ns)
    quiet = inside[busy.within(start, end).sum(axis=0) <= 0]
    if len(quiet) < MIN_UPDATES:
        return Energy(
            None,
            reason=f"{len(quiet)} updates of the sensor lie apart from all traced GPU work; {MIN_UPDATES} are needed "
            "for the power of the GPU while it is awake and does nothing",
        )
    part = (np.searchsorted(inside, quiet) * PARTS) // len(inside)
    if len(np.unique(part)) < PARTS:
        return Energy(None, reason="the GPU was without work in a part of the window only")
    energy, seconds = steps.energy_j[quiet], np.diff(steps.edge_ns)[quiet] / NS_PER_S
    means = [
        float(energy[block].sum() / seconds[block].sum()) for block in np.array_split(np.arange(len(quiet)), BLOCKS)
    ]
    half = student_t(BLOCKS - 1) * float(np.std(means, ddof=1)) / np.sqrt(BLOCKS)
    total = float(seconds.sum())
    return Energy(float(energy.sum()), half * total, total)
