"""Which stage spent the energy: steps of a sensor explained by what the GPU was busy with in them.

Every moment belongs to one class: a stage, GPU work outside of stages, or none of it ("waiting"). Every model and
every response of the sensor that the readings do not rule out (`fits`) gives each class an energy; the interval holds
all of them. A class whose interval is wide has no number, only bounds. docs/guides/energy.md derives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfharness.analysis.energy.fits import HIGHEST_W, Fit
from perfharness.analysis.energy.kinds import BusyShares, KnownWork
from perfharness.analysis.energy.sensors import MIN_UPDATES, Explained
from perfharness.analysis.energy.steps import NS_PER_S, Energy, Steps
from perfharness.analysis.statistics import student_t
from perfharness.model.result import Float64
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

Method = Literal["regression", "bounds", "no_gpu_work", "none"]


@dataclass(frozen=True)
class ClassEnergy:
    """One class's energy over the window, idle power included while it runs; interval of 95 %.

    `method`: `regression`, separable from all others; `bounds`, no number, only what is possible, with the reason;
    `no_gpu_work`, measured to be 0; `none`, with the reason.
    """

    name: str
    busy_s: float
    joules: float | None
    low_j: float | None
    high_j: float | None
    method: Method
    reason: str | None = None
    together: tuple[str, ...] = ()


@dataclass(frozen=True)
class Joint:
    """What several classes spent together, not separable."""

    names: tuple[str, ...]
    busy_s: float
    joules: float
    low_j: float
    high_j: float


@dataclass(frozen=True)
class Attribution:
    """Energy by class; `waiting` last. `joules` is their sum over `seconds`.

    `awake` is the energy of the time in which the GPU was awake and nothing ran, from which its power follows.
    """

    classes: tuple[ClassEnergy, ...]
    joint: tuple[Joint, ...]
    joules: float | None
    seconds: float
    steps: int
    lag_ns: int | None
    duty: float | None
    smoothed_ns: float | None
    awake: Energy
    reason: str | None = None


def attribute(
    steps: Steps | str,
    names: Sequence[str],
    busy: BusyShares,
    window: tuple[int, int],
    *,
    idle_w: float | None = None,
    limit_w: float | None = None,
    explained: Explained | None = None,
) -> Attribution:
    """Energy of each class in a window of time.

    Args:
        steps: of the energy counter, or of integrated power.
        names: of the classes.
        busy: when each of them was at work.
        window: UTC ns.
        idle_w, limit_w: between which the GPU's power must lie; None: not known.
        explained: the steps over the window, where it is known.
    """
    total = busy.within(np.asarray([window[0]]), np.asarray([window[1]]))[:, 0]
    seconds = (window[1] - window[0]) / NS_PER_S
    every = (*names, WAITING)
    total = np.append(total, max(seconds - float(total.sum()), 0.0))
    if isinstance(steps, str):
        return _without(every, total, seconds, 0, steps)
    low_w = IDLE_FLOOR * (idle_w or 0.0)
    inside = np.flatnonzero((steps.edge_ns[:-1] >= window[0]) & (steps.edge_ns[1:] <= window[1]))
    if len(inside) < MIN_UPDATES:
        why = f"the sensor moved {len(inside)} times in the window; {MIN_UPDATES} are needed"
        return _without(every, total, seconds, len(inside), why)
    explained = explained or Explained(steps, window, KnownWork(busy), low_w=low_w, high_w=limit_w)
    if explained.total.joules is None:
        return _without(every, total, seconds, len(inside), explained.total.reason or "no sensor can measure it")
    if not total[:-1].any():
        return _only_waiting(every, total, explained.total, len(inside))
    fits = [fit for fit in explained.fits if fit.kinds.name != "batch"]
    best = fits[0]
    response = best.response
    reach = (response.duty - 1.0) * steps.period_ns + 3 * response.smoothed_ns
    quiet = awake_power(steps, inside, busy, max(reach, 0.0))
    found = []
    for at, (name, busy_s) in enumerate(zip(every, total.tolist(), strict=True)):
        if busy_s <= 0:
            found.append(ClassEnergy(name, 0.0, 0.0, 0.0, 0.0, "no_gpu_work"))
            continue
        found.append(_of_class(name, busy_s, _between(fits, [at]), (low_w, limit_w or HIGHEST_W)))
    joint = _joint(fits, found)
    return Attribution(
        classes=tuple(found),
        joint=joint,
        joules=float(best.power_w @ best.kinds.seconds),
        seconds=seconds,
        steps=len(inside),
        lag_ns=int(response.lag_ns),
        duty=response.duty,
        smoothed_ns=response.smoothed_ns,
        awake=_awake(quiet, found[-1]),
    )


def _of_class(
    name: str, busy_s: float, estimates: tuple[float, float, float], between_w: tuple[float, float]
) -> ClassEnergy:
    """A number where its interval is narrow enough to be one, else what is possible."""
    value, low, high = estimates
    floor, ceiling = (watts * busy_s for watts in between_w)
    if high < floor or low > ceiling:
        why = f"the steps of the sensor ask for {value / busy_s:.0f} W, which the GPU cannot draw"
        return ClassEnergy(name, busy_s, None, None, None, "none", why)
    low, high = max(low, floor), min(high, ceiling)
    if low <= value <= high and high <= WIDEST * low:
        return ClassEnergy(name, busy_s, value, low, high, "regression")
    why = (
        f"the sensor's readings fit anything from {low / busy_s:.0f} to {high / busy_s:.0f} W: its work rises and "
        "falls with other work, or its power depends on more than the stage"
    )
    return ClassEnergy(name, busy_s, None, low, high, "bounds", why)


def _awake(quiet: Energy, waiting: ClassEnergy) -> Energy:
    """Where no time was quiet enough, waiting that is separable gives the same."""
    if quiet.joules is not None or waiting.joules is None:
        return quiet
    assert waiting.low_j is not None
    assert waiting.high_j is not None
    return Energy(waiting.joules, (waiting.high_j - waiting.low_j) / 2, waiting.busy_s)


def _only_waiting(names: Sequence[str], total: Float64, energy: Energy, steps: int) -> Attribution:
    assert energy.joules is not None
    assert energy.error_j is not None
    assert energy.seconds is not None
    nothing = [ClassEnergy(name, 0.0, 0.0, 0.0, 0.0, "no_gpu_work") for name in names[:-1]]
    low, high = energy.joules - energy.error_j, energy.joules + energy.error_j
    waiting = ClassEnergy(names[-1], float(total[-1]), energy.joules, low, high, "regression")
    return Attribution(
        (*nothing, waiting), (), energy.joules, energy.seconds, steps, None, None, None, _awake(Energy(None), waiting)
    )


def _between(fits: Sequence[Fit], owners: Sequence[int]) -> tuple[float, float, float]:
    """Energy of some classes together: of the best fit, and the interval that holds those of all fits."""
    estimates = [fit.energy(fit.seconds_of(owners)) for fit in fits]
    return (
        estimates[0][0],
        min(value - half for value, half in estimates),
        max(value + half for value, half in estimates),
    )


def _joint(fits: Sequence[Fit], found: list[ClassEnergy]) -> tuple[Joint, ...]:
    """The classes without numbers of their own, together."""
    mine = [at for at, one in enumerate(found) if one.method == "bounds"]
    if len(mine) < 2:
        return ()
    names = tuple(found[at].name for at in mine)
    for at in mine:
        found[at] = replace(found[at], together=names)
    value, low, high = _between(fits, mine)
    return (Joint(names, sum(found[at].busy_s for at in mine), value, low, high),)


def _without(names: Sequence[str], total: Float64, seconds: float, steps: int, reason: str) -> Attribution:
    classes = tuple(
        ClassEnergy(name, float(busy), None, None, None, "none", reason)
        for name, busy in zip(names, total, strict=True)
    )
    return Attribution(classes, (), None, seconds, steps, None, None, None, Energy(None, reason=reason), reason)


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
