"""Means over windows explained by what ran in them: the value of a counter while each class of work ran.

A window of 100 ms holds many stages. Its mean is the sum, over the classes of work, of each class's value times the
part of the window in which that class ran; where nothing ran, the counters are 0. As with energy, every model of what
else a value may depend on (`energy.kinds`: how long the work has run, what ran before, when in the run) that the
readings do not rule out gives each class a value, and the interval holds all of them. Other than a power sensor, a
counter's mean is known to be of exactly its window; how far the clocks may be apart is one more thing that is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.counters.clocks import Clocks, find_clocks, of_cycles
from perfharness.analysis.energy.kinds import BusyShares, Kinds, KnownWork
from perfharness.analysis.ridge import INEXACT, RULED_OUT, Prior, Ridge, ridge
from perfharness.analysis.statistics import student_t
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64

RESOLUTION = 1e-3
"""Of a counter's unit: smaller differences between readings mean nothing."""

WIDE, DEVIATION = 0.5, 0.25
"""Of a counter's ceiling, standard deviations of the prior: of a class's value, and of its kinds among themselves."""

SETTLED = 0.01
"""Relative change of the variance of the readings that ends a fit."""

SHIFTS = 5
"""Of the windows that are tried besides none, from the one end to the other of what is likely."""

NUDGE = 0.01
"""Of the logarithm of a clock: so far it is moved to see what depends on it."""

PRESENT = 0.03
"""Of the time: what runs for less has no clock to speak of."""

COPIES = -1
"""Owner of the time in which copies from and to the host ran: they run beside the kernels and take no share of them."""


@dataclass(frozen=True)
class Estimate:
    """A counter while some classes of work ran, and the interval that holds it (95 %)."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class _Design:
    """One model: the part of each window in which each kind of work ran, shape (kinds, windows)."""

    share: Float64
    owner: Int64
    seconds: Float64

    def weights(self, owners: Sequence[int]) -> Float64:
        """Each kind's part of the time (or the cycles) of some classes together."""
        mine = np.where(np.isin(self.owner, owners), self.seconds, 0.0)
        return np.asarray(mine / max(float(mine.sum()), 1e-12))

    def at(self, clocks: Clocks) -> _Design:
        """Of cycles instead of time; copies from and to the host run beside the kernels and have none."""
        if clocks.is_steady:
            return self
        kernels = self.owner != COPIES
        share, seconds = self.share.copy(), self.seconds.copy()
        share[kernels] = of_cycles(self.share[kernels], clocks.ratio, self.owner[kernels])
        seconds[kernels] *= clocks.ratio[self.owner[kernels]]
        return _Design(share, self.owner, seconds)


@dataclass(frozen=True)
class _Fit:
    design: _Design
    found: Ridge

    @property
    def covariances(self) -> Iterator[tuple[Float64, float]]:
        """Each way to have it, and how many standard errors hold 95 %: of blocks of readings and of single ones."""
        found = self.found
        left = max(len(found.residual) - found.used, 1.0)
        of_blocks, of_all = found.covariances
        yield of_blocks, student_t(max(found.blocks - 1, 1)) * float(np.sqrt(len(found.residual) / left))
        yield of_all, student_t(max(round(left), 1))


class WorkInWindows:
    """Windows of time, and what ran in them.

    Args:
        start_ns, end_ns: of the windows, in order.
        classes: of work; together they are all that can move the counters, but for `copies`.
        copies: (start_ns, end_ns) of copies from and to the host.
        edge_error_ns: how far the windows may be off the work.
    """

    def __init__(
        self, start_ns: Int64, end_ns: Int64, classes: BusyShares, copies: tuple[Int64, Int64], edge_error_ns: int
    ) -> None:
        self.length_ns = (end_ns - start_ns).astype(np.float64)
        self._busy_s = classes.within(start_ns, end_ns)
        self.busy_s = self._busy_s.sum(axis=1)
        """Of each class in all windows, seconds."""
        known, line = KnownWork(classes), BusyLine(*copies)
        self._designs: list[_Design] = []
        if not len(start_ns):
            return
        window = int(start_ns[0]) - edge_error_ns, int(end_ns[-1]) + edge_error_ns
        models = [known.plain(window), *(kinds for kinds in known.splits(window) if kinds.name != "pause")]
        for shift in dict.fromkeys((0, *np.linspace(-edge_error_ns, edge_error_ns, SHIFTS).astype(np.int64).tolist())):
            start, end = start_ns + shift, end_ns + shift
            copying = line.within(start, end) / self.length_ns
            tried = models[: len(models) if shift == 0 else 1]
            self._designs += [self._design(kinds, start, end, copying) for kinds in tried]

    def _design(self, kinds: Kinds, start: Int64, end: Int64, copying: Float64) -> _Design:
        working = kinds.owner < len(self.busy_s)
        seconds = (kinds.until(end) - kinds.until(start))[working]
        share, owner = seconds / (self.length_ns / 1e9), kinds.owner[working]
        if copying.any():
            share, owner = np.vstack([share, copying]), np.append(owner, COPIES)
        total = share @ (self.length_ns / 1e9)
        there = total > 0
        return _Design(share[there], owner[there], total[there])

    def fit(
        self,
        value: Float64,
        ceiling: float = 1.0,
        unit: float = 1.0,
        *,
        plain: bool = False,
        clocks: Clocks | None = None,
    ) -> Fits:
        """Explain one counter.

        Args:
            value: its mean in each window; NaN: not read.
            ceiling: what it can be at most.
            unit: what is large of it: no difference of less than a thousandth of that means anything.
            plain: try only the plainest model, for a counter whose parts are wanted and not its interval.
            clocks: of a mean over cycles instead of time, those of the classes.
        """
        read = ~np.isnan(value)
        weight = self.length_ns[read] / float(self.length_ns[read].mean())
        is_zero = float(value[read].max()) <= RESOLUTION * unit  # as most pipes are, most of the time
        designs = self._designs[:1] if plain or is_zero else self._designs

        def fitted(design: _Design, clocks: Clocks | None) -> _Fit:
            design = design if clocks is None else design.at(clocks)
            return _fit(design, value[read], weight, read, ceiling, unit)

        fits = [fitted(design, clocks) for design in designs]
        best = min(fits, key=lambda fit: fit.found.score)
        kept = [best, *(fit for fit in fits if fit is not best and fit.found.score <= best.found.score + RULED_OUT)]
        if clocks is None or clocks.is_steady or is_zero:
            return Fits(kept, ceiling, unit)
        likeliest = designs[next(position for position, fit in enumerate(fits) if fit is best)]
        nudged = [fitted(likeliest, clocks.nudged(which, NUDGE)) for which in range(len(clocks.ratio))]
        return Fits(kept, ceiling, unit, clocks, nudged)

    def find_clocks(self, values: Sequence[Float64], changed: float) -> Clocks:
        """The clocks of the classes by counters that are means over cycles (`clocks.find_clocks`)."""
        return find_clocks(self._busy_s / (self.length_ns / 1e9), values, changed)

    def clock_while(self, owners: Sequence[int], clock: Float64, clocks: Clocks) -> float | None:
        """Mean clock while these classes ran, where that of some moments is known; None: it is not.

        The ratios are the counters' own; the mean of what was read gives the unit, but nothing ran faster than the
        highest clock that was read. (What NVML reads of an H200 at its power limit is 5 % above its cycles.)
        """
        known, seconds = clock[~np.isnan(clock)], self.busy_s[list(owners)]
        if not len(known) or not seconds.sum():
            return None
        parts = np.append(self.busy_s, max(float(self.length_ns.sum()) / 1e9 - float(self.busy_s.sum()), 0.0))
        there = parts > PRESENT * parts.sum()
        unit = float(known.mean()) / float(np.average(clocks.ratio, weights=parts))
        unit = min(unit, float(known.max()) / float(clocks.ratio[there].max()))
        return unit * float(np.average(clocks.ratio[list(owners)], weights=seconds))


class Fits:
    """All that the readings of one counter do not rule out, the most likely first."""

    def __init__(
        self,
        fits: list[_Fit],
        ceiling: float,
        unit: float,
        clocks: Clocks | None = None,
        nudged: Sequence[_Fit] = (),
    ) -> None:
        self._fits = fits
        self._ceiling = ceiling
        self.unit = unit
        self._clocks = clocks
        self._nudged = nudged

    def of(self, owners: Sequence[int]) -> Estimate:
        """While these classes, together, ran."""
        found = list(self._each(owners))
        off = self.off_by_clocks(owners)
        low, high = min(value - half for value, half in found) - off, max(value + half for value, half in found) + off
        low, high = min(max(low, 0.0), self._ceiling), max(min(high, self._ceiling), 0.0)
        return Estimate(min(max(found[0][0], low), high), low, high)

    def off_by_clocks(self, owners: Sequence[int]) -> float:
        """How far a value may be off since the clocks are not better known; 0 where they did not change."""
        if self._clocks is None or not self._nudged:
            return 0.0
        best = self._fits[0]
        value = best.design.weights(owners) @ best.found.value
        slope = [(one.design.weights(owners) @ one.found.value - value) / NUDGE for one in self._nudged]
        return student_t(max(best.found.blocks - 1, 1)) * self._clocks.error(np.asarray(slope))

    def _each(self, owners: Sequence[int]) -> Iterator[tuple[float, float]]:
        for fit in self._fits:
            weights = fit.design.weights(owners)
            half = max(
                errors * float(np.sqrt(max(float(weights @ one @ weights), 0.0))) for one, errors in fit.covariances
            )
            yield float(weights @ fit.found.value), max(INEXACT * half, RESOLUTION * self.unit)


def _fit(design: _Design, value: Float64, weight: Float64, read: Bool, ceiling: float, unit: float) -> _Fit:
    """With a prior as wide as the counter's range."""
    share = design.share if read.all() else design.share[:, read]
    prior = Prior.of(design.owner, ceiling / 2, WIDE * ceiling, DEVIATION * ceiling)
    return _Fit(design, ridge(share, value, weight, prior, (RESOLUTION * unit) ** 2, settled=SETTLED))
