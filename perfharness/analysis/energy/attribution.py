"""Which stage spent the energy: steps of the counter explained by what the GPU was busy with in them.

Every moment belongs to one class: a stage, GPU work outside of stages, or none of it ("waiting"). A step's energy is
then the sum of each class's power times its time in the step, and the powers follow by least squares over all steps.
Steps are weighted by 1 / length, which makes the classes' energies add up to the counter's exactly. What the sensor
really looked at (how late it is, and whether at the whole of each period) is found from the log too. Classes whose
times rise and fall together cannot be told apart: they have one number together, and each of them by itself only a
share by busy time, between the bounds that the GPU's power limit leaves. Where waiting is among them, its power is
looked for where no work is near; what is known only within bounds far apart is no number. docs/energy.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfharness.analysis.energy.awake import awake_power
from perfharness.analysis.energy.busy import BusyShares
from perfharness.analysis.energy.sensors import MIN_UPDATES, NS_PER_S, Energy, Steps
from perfharness.analysis.statistics import student_t
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

WAITING = "waiting"
"""The class of all time in which the GPU ran nothing that is in a trace."""

RELIABLE = 0.95
"""Share of a class's variation that must be real, not error of where the steps begin and end, for a number of its own:
the rest pulls its power towards the mean of all by about that share (attenuation; Fuller, Measurement Error Models,
1987), which is added to the interval."""

DUTIES = (1.0, 0.25, 0.5, 2.0, 5.0, 10.0)
"""How much of its period each value of the sensor may speak of: 0.25 is what Yang et al. found on A100 and H100; more
than 1 is an average that reaches back beyond the update before."""

Z95 = 1.96
"""Half-width of the middle 95 % of a normal distribution, in standard deviations."""

LAG_PERIODS = (0.0, *(round(0.1 * step, 1) for step in range(-5, 21) if step))
BETTER = 1.1
"""How much better any other part than the whole must explain the steps, for it says that some of the load was never
seen, or was seen twice."""
MAX_STEPS_TRIED = 4000
"""Of a longer run every so many steps are tried for lag and part: more would tell nothing more, and take long."""

MERGES = (1, 2, 4, 8, 16)
BOOTSTRAPS = 400
SMEAR = 0.05
"""Error of an edge that is not the reading's: no sensor cuts off sharply. In update periods."""

IN_STEP = 0.9
"""Mean resultant length of the batches' phases from which on they are in step with the sensor."""

MIN_BATCHES_FOR_PHASE = 10

IDLE_FLOOR = 0.9
"""Less than this part of its idle power before the run a GPU does not draw: it was idle then, and is warmer now."""

WIDEST = 4.0
"""An interval whose upper end is more than so many times its lower one (a factor of two either way) holds no number."""

Method = Literal["regression", "awake", "busy_time", "bounds", "no_gpu_work", "none"]


@dataclass(frozen=True)
class ClassEnergy:
    """One class's energy over the window, idle power included while it runs; interval of 95 %.

    `method`: `regression`, told apart from all others; `awake`, waiting at the GPU's awake power, or the one stage that
    has all the rest; `busy_time`, a share by busy time of what `together` spent, the interval being what is possible at
    all; `bounds`, no number, only what is possible, with the reason; `no_gpu_work`, measured to be 0; `none`, with the
    reason.
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
    """What several classes spent that cannot be told apart."""

    names: tuple[str, ...]
    busy_s: float
    joules: float
    low_j: float
    high_j: float


@dataclass(frozen=True)
class Attribution:
    """Energy by class; `waiting` last. `joules` is their sum, the counter's over `seconds`.

    `awake` is the energy of the time in which the GPU was awake and nothing ran, from which its power follows.
    """

    classes: tuple[ClassEnergy, ...]
    joint: tuple[Joint, ...]
    joules: float | None
    seconds: float
    steps: int
    lag_ns: int | None
    duty: float | None
    awake: Energy
    reason: str | None = None


@dataclass(frozen=True)
class _Design:
    """Steps and the seconds of each class in them, shape (classes, steps)."""

    energy_j: Float64
    seconds: Float64
    classes: Float64

    def merged(self, count: int) -> _Design:
        """`count` steps to one; what is left over at the end joins the last."""
        if count == 1:
            return self
        first = np.arange(0, max(len(self.energy_j) // count, 1)) * count
        return _Design(
            np.add.reduceat(self.energy_j, first),
            np.add.reduceat(self.seconds, first),
            np.add.reduceat(self.classes, first, axis=1),
        )

    def grouped(self, group: Int64) -> _Design:
        """Classes of one group to one row."""
        rows = np.zeros((int(group.max()) + 1, len(self.energy_j)))
        np.add.at(rows, group, self.classes)
        return _Design(self.energy_j, self.seconds, rows)

    def powers(self, weight: Float64 | None = None) -> Float64:
        """Least squares, steps weighted by 1 / length."""
        weights = (1.0 if weight is None else weight) / self.seconds
        gram = (self.classes * weights) @ self.classes.T
        return np.asarray(np.linalg.pinv(gram, hermitian=True) @ (self.classes @ (weights * self.energy_j)))

    def misfit(self) -> float:
        """Weighted sum of squares that is left."""
        left = self.energy_j - self.powers() @ self.classes
        return float((left**2 / self.seconds).sum())


def attribute(
    steps: Steps | str,
    names: Sequence[str],
    busy: BusyShares,
    window: tuple[int, int],
    *,
    idle_w: float | None = None,
    limit_w: float | None = None,
    seed: int = 0,
) -> Attribution:
    """Energy of each class in a window of time.

    Args:
        steps: of the energy counter, or of integrated power.
        names: of the classes.
        busy: when each of them was at work.
        window: UTC ns.
        idle_w, limit_w: between which the GPU's power must lie; None: not known.
        seed: of the bootstrap, so that the same log gives the same interval.
    """
    total = busy.within(np.asarray([window[0]]), np.asarray([window[1]]))[:, 0]
    seconds = (window[1] - window[0]) / NS_PER_S
    every = (*names, WAITING)
    total = np.append(total, max(seconds - float(total.sum()), 0.0))
    if isinstance(steps, str):
        return _without(every, total, seconds, 0, steps)
    inside = np.flatnonzero((steps.edge_ns[:-1] >= window[0]) & (steps.edge_ns[1:] <= window[1]))
    if len(inside) < MIN_UPDATES:
        why = f"the sensor moved {len(inside)} times in the window; {MIN_UPDATES} are needed"
        return _without(every, total, seconds, len(inside), why)
    present = total > 0
    lag, duty, design = _observed(steps, inside, busy, present)
    group, design, reliability = _group(design, steps)
    power = design.powers()
    spread = _bootstrap(design, math.ceil(duty), seed)
    pull = (1 - reliability) * float(np.ptp(power)) if len(power) > 1 else np.zeros(1)
    group_busy = np.bincount(group, weights=total[present], minlength=len(power))
    half = (spread + pull) * group_busy
    members = np.flatnonzero(present)
    awake = awake_power(steps, inside, busy, duty)
    bounds = _Bounds(IDLE_FLOOR * (idle_w or 0.0), limit_w or np.inf, idle_w, awake)
    found: dict[int, ClassEnergy] = {}
    joint: list[Joint] = []
    for number in range(len(power)):
        mine = members[group == number]
        energy, error = float(power[number] * group_busy[number]), float(half[number])
        if len(mine) > 1 and mine[-1] == len(names) and awake.mean_power_w is not None:
            waiting, energy, error = _waiting(float(total[-1]), energy, error, awake)
            found[len(names)] = waiting
            mine = mine[:-1]
            if len(mine) == 1:
                found[int(mine[0])] = _alone(every[mine[0]], float(total[mine[0]]), energy, error, bounds, "awake")
                continue
        elif len(mine) == 1:
            found[int(mine[0])] = _alone(every[mine[0]], float(total[mine[0]]), energy, error, bounds, "regression")
            continue
        one = Joint(tuple(every[at] for at in mine), float(total[mine].sum()), energy, energy - error, energy + error)
        joint.append(one)
        for at in mine:
            found[int(at)] = _share(every, total, mine, int(at), one, bounds)
    for at in np.flatnonzero(~present):
        found[int(at)] = ClassEnergy(every[at], 0.0, 0.0, 0.0, 0.0, "no_gpu_work")
    return Attribution(
        classes=tuple(found[at] for at in range(len(every))),
        joint=tuple(joint),
        joules=float(power @ group_busy),
        seconds=seconds,
        steps=len(inside),
        lag_ns=int(lag),
        duty=duty,
        awake=_awake(awake, found[len(names)]),
    )


def in_step(batch_start_ns: Int64, period_ns: float) -> bool:
    """Whether batches begin at the same moments of the sensor's period, once, twice or three times in it.

    A sensor that looks at a part of each period then sees the same part of every batch, and never the rest. (The
    mean resultant length of the phases, as Mardia and Jupp, Directional Statistics, define it.)
    """
    if len(batch_start_ns) < MIN_BATCHES_FOR_PHASE:
        return False
    phase = 2 * np.pi * ((batch_start_ns - batch_start_ns[0]) / period_ns)
    return any(abs(np.exp(1j * times * phase).mean()) > IN_STEP for times in (1, 2, 3))


def _without(names: Sequence[str], total: Float64, seconds: float, steps: int, reason: str) -> Attribution:
    classes = tuple(
        ClassEnergy(name, float(busy), None, None, None, "none", reason)
        for name, busy in zip(names, total, strict=True)
    )
    return Attribution(classes, (), None, seconds, steps, None, None, Energy(None, reason=reason), reason)


def _design(
    steps: Steps, inside: Int64, busy: BusyShares, present: np.typing.NDArray[np.bool_], lag_ns: float, duty: float
) -> _Design:
    """The steps, and what ran in the part of each that the sensor looked at, scaled up to the whole."""
    end = steps.edge_ns[inside + 1] - round(lag_ns)
    length = np.diff(steps.edge_ns)[inside]
    looked = np.round(length * duty).astype(np.int64)
    shares = busy.within(end - looked, end) * (length / looked)
    waiting = np.maximum(length / NS_PER_S - shares.sum(axis=0), 0.0)
    return _Design(steps.energy_j[inside], length / NS_PER_S, np.vstack([shares, waiting])[present])


def _observed(
    steps: Steps, inside: Int64, busy: BusyShares, present: np.typing.NDArray[np.bool_]
) -> tuple[float, float, _Design]:
    """How late the sensor is and which part of a period it looks at: what explains its steps best."""
    best: tuple[float, float, float] | None = None
    some = inside[:: -(-len(inside) // MAX_STEPS_TRIED)]
    for duty in DUTIES:
        for lag in (periods * steps.period_ns for periods in LAG_PERIODS):
            design = _design(steps, some, busy, present, lag, duty)
            misfit = design.misfit() * (1.0 if duty == 1.0 else BETTER)
            if best is None or misfit < best[0] * (1 - 1e-6):
                best = (misfit, lag, duty)
    assert best is not None
    _, lag, duty = best
    return lag, duty, _design(steps, inside, busy, present, lag, duty)


def _reliability(design: _Design, edge_error_s: float) -> Float64:
    """Per class, the share of its variation, what all others explain taken away, that is no error of the edges."""
    columns = design.classes / np.sqrt(design.seconds)
    found = np.zeros(len(columns))
    error = 2 * edge_error_s**2 / float(design.seconds.mean())
    for row in range(len(columns)):
        others = np.delete(columns, row, axis=0)
        if not len(others):
            return np.ones(1)
        told = others.T @ (np.linalg.pinv(others.T) @ columns[row])
        own = float(((columns[row] - told) ** 2).mean())
        found[row] = 1 - error / own if own > error else 0.0
    return found


def _group(design: _Design, steps: Steps) -> tuple[Int64, _Design, Float64]:
    """Classes that can be told apart, each in a group of its own, others joined; over as many steps as that takes.

    Returns the group of each class, the design with a row a group, and the reliability of each group.
    """
    error = float(np.hypot(steps.edge_error_ns, SMEAR * steps.period_ns)) / NS_PER_S
    best: tuple[Int64, _Design, Float64] | None = None
    for count in MERGES:
        merged = design.merged(count)
        if count > 1 and len(merged.energy_j) < max(MIN_UPDATES, 5 * len(design.classes)):
            break
        group = np.arange(len(design.classes), dtype=np.int64)
        while True:
            candidate = merged.grouped(group)
            reliable = _reliability(candidate, error)
            if len(reliable) == 1 or reliable.min() >= RELIABLE:
                break
            group = _join(group, candidate, int(reliable.argmin()))
        better = best is None or len(reliable) > len(best[2])
        if better:
            best = (group, candidate, reliable)
        if len(reliable) == len(design.classes):
            break
    assert best is not None
    return best


def _join(group: Int64, design: _Design, weak: int) -> Int64:
    """Join the group that cannot be told apart with the one that explains most of it."""
    columns = design.classes / np.sqrt(design.seconds)
    others = np.delete(np.arange(len(columns)), weak)
    weights = np.linalg.pinv(columns[others].T) @ columns[weak]
    partner = int(others[np.argmax(np.abs(weights) * np.sqrt((columns[others] ** 2).mean(axis=1)))])
    joined = np.where(group == weak, partner, group)
    return np.unique(joined, return_inverse=True)[1].astype(np.int64).ravel()


def _bootstrap(design: _Design, reach: int, seed: int) -> Float64:
    """Half-width of the 95 % interval of each power, from blocks of steps drawn again and again.

    Blocks, because neighbours share the error of the edge between them, and `reach` of them what they are an average
    of (Künsch 1989: moving blocks); widened as Student's t is against the normal distribution, for steps may be few.
    """
    count, rows = len(design.energy_j), len(design.classes)
    block = max(2, reach, round(count ** (1 / 3)))
    random = np.random.default_rng(seed)
    starts = random.integers(0, count, size=(BOOTSTRAPS, -(-count // block)))
    drawn = (starts[:, :, None] + np.arange(block)).reshape(BOOTSTRAPS, -1)[:, :count] % count
    found = np.empty((BOOTSTRAPS, rows))
    for place, choice in enumerate(drawn):
        found[place] = design.powers(np.bincount(choice, minlength=count).astype(np.float64))
    freedom = max(count // block - rows, 1)
    low, high = np.percentile(found, [2.5, 97.5], axis=0)
    return np.asarray((high - low) / 2 * student_t(freedom) / Z95, dtype=np.float64)


@dataclass(frozen=True)
class _Bounds:
    """Between which powers any class must lie, and what is known of power without work."""

    low_w: float
    high_w: float
    idle_w: float | None
    awake: Energy

    @property
    def working_w(self) -> float:
        """A GPU at work draws no less than while it is awake and waits, as far as that is known."""
        if self.awake.mean_power_w is None or not self.awake.seconds:
            return self.low_w
        return max(self.low_w, self.awake.mean_power_w - (self.awake.error_j or 0.0) / self.awake.seconds)


def _awake(quiet: Energy, waiting: ClassEnergy) -> Energy:
    """Where no time was quiet enough, waiting that was told apart by itself says the same."""
    if quiet.joules is not None or waiting.method != "regression" or waiting.joules is None:
        return quiet
    assert waiting.low_j is not None
    assert waiting.high_j is not None
    return Energy(waiting.joules, (waiting.high_j - waiting.low_j) / 2, waiting.busy_s)


def _waiting(waiting_s: float, energy: float, error: float, awake: Energy) -> tuple[ClassEnergy, float, float]:
    """Waiting at awake power, and what that leaves of a group's energy, with its error."""
    assert awake.mean_power_w is not None
    assert awake.seconds
    mine = awake.mean_power_w * waiting_s
    own_error = (awake.error_j or 0.0) / awake.seconds * waiting_s
    one = ClassEnergy(WAITING, waiting_s, mine, mine - own_error, mine + own_error, "awake")
    return one, energy - mine, math.hypot(error, own_error)


def _alone(name: str, busy_s: float, energy: float, error: float, bounds: _Bounds, method: Method) -> ClassEnergy:
    floor, ceiling = bounds.low_w * busy_s, bounds.high_w * busy_s
    low, high = energy - error, energy + error
    if high < floor or low > ceiling:
        why = f"the steps of the sensor ask for {energy / busy_s:.0f} W, which the GPU cannot draw"
        return ClassEnergy(name, busy_s, None, None, None, "none", why)
    low, high = max(low, floor), min(high, ceiling)
    unknown = _no_number(energy, low, high, busy_s)
    if unknown is not None:
        return ClassEnergy(name, busy_s, None, low, high, "bounds", unknown)
    return ClassEnergy(name, busy_s, energy, low, high, method)


def _no_number(energy: float, low: float, high: float, busy_s: float) -> str | None:
    """Why what lies between two bounds is known no better than by them; None where it is."""
    slack = 1e-9 * abs(high)
    if not low - slack <= energy <= high + slack:
        return f"its energy would come to {energy / busy_s:.0f} W, which is not possible: only the bounds are known"
    if high > WIDEST * low:
        return f"the bounds are more than a factor of {WIDEST:g} apart"
    return None


def _share(every: Sequence[str], total: Float64, mine: Int64, at: int, joint: Joint, bounds: _Bounds) -> ClassEnergy:
    """A share by busy time of what a group spent; waiting is given the idle power before the rest is shared out.

    That is so only where no awake power is known; else waiting is not in the group.
    """
    waiting, busy_s = len(total) - 1, float(total[at])
    low_w = np.where(np.arange(len(total)) == waiting, bounds.low_w, bounds.working_w)
    others = mine[mine != at]
    others_s = float(total[others].sum())
    least, most = low_w[at] * busy_s, bounds.high_w * busy_s
    low = max(least, joint.low_j - bounds.high_w * others_s if np.isfinite(bounds.high_w) else 0.0)
    high = max(min(most, joint.high_j - float((low_w * total)[others].sum())), low)
    names = ", ".join(every[other] for other in others)
    why = f"its work rises and falls together with that of {names}, so the sensor cannot tell them apart"
    value: float | None = None
    if waiting not in mine:
        value = joint.joules * busy_s / float(total[mine].sum())
    elif bounds.idle_w is None:
        return ClassEnergy(
            every[at], busy_s, None, float(low), float(high), "bounds",
            f"{why}; and without the idle power nothing can be shared out", joint.names,
        )  # fmt: skip
    else:
        idle_j = bounds.idle_w * float(total[waiting])
        working_s = float(total[mine].sum() - total[waiting])
        value = idle_j if at == waiting else (joint.joules - idle_j) * busy_s / working_s
    unknown = _no_number(value, float(low), float(high), busy_s)
    if unknown is not None:
        return ClassEnergy(every[at], busy_s, None, float(low), float(high), "bounds", f"{why}; {unknown}", joint.names)
    return ClassEnergy(every[at], busy_s, value, float(low), float(high), "busy_time", why, joint.names)
