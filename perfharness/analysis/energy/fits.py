"""The steps of a sensor explained: a power for each kind of time, seen through what the sensor may do to it.

What a step speaks of is not documented, and what power depends on is not known. So every combination of a response of
the sensor (how late, which part of each period, how much smoothed) and of a model (`kinds`) is tried, and all that the
readings do not rule out are kept: their range is the interval. What the readings do not determine at all is
left to a prior as wide as the powers that a GPU can draw. docs/guides/energy.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.energy.kinds import Kinds, KnownWork
from perfharness.analysis.energy.steps import NS_PER_S, Steps
from perfharness.analysis.ridge import INEXACT, RULED_OUT, Prior, Ridge, ridge
from perfharness.analysis.statistics import student_t
from perfharness.model.result import Float64

DUTIES = (1.0, 0.25, 0.5, 2.0, 5.0, 10.0)
"""How much of its period each value of the sensor may speak of: 0.25 is what Yang et al. found on A100 and H100; more
than 1 is an average that reaches back beyond the update before."""

SMOOTHED_MS = (20, 35, 50, 75, 110, 160, 230, 330)
"""Time constants of a low-pass filter over a sensor's values."""

LAG_PERIODS = tuple(step / 4 for step in range(-2, 9))
FINER = (0.5, 0.25, 0.1, 0.05, 0.02)
"""Steps of the search for the best lag, in periods."""

STRETCHED = (1.3, 1.15, 1.07, 1.03, 1.015)
"""Factors next to them by which a time constant, or the age of a change, is made larger or smaller."""

MOST_MOVES = 6
"""With steps of one size, where time constant and lag are both fitted."""

LAG_SLACK = (-0.2, -0.1, -0.04, -0.015, 0.015, 0.04, 0.1, 0.2)

SMOOTH_SLACK = (0.83, 1.2)

CELLS = 25
"""Moments a period at which the kinds' times are sampled."""

MOST_STEPS = 750
BLOCK_STEPS = 125
"""Of a longer run, blocks of steps all over it are used: more would add little and take long."""

SCREENING_STEPS = 250
"""Steps by which a response is searched; what is found is judged by all of them."""

NOT_LINEAR = 0.01
"""Of the mean power: what better sensors than there are would leave."""

WORSE = 5.0
"""And how many times the best fit's mean square a fit must leave: no model is exact."""

MAX_CORRELATION_LENGTH = 9.0
"""Variance from blocks of steps over that from single ones: more is a few odd steps and no correlation."""

DEVIATION_W = 100.0
"""How far kinds of one class may differ where the readings do not determine it: standard deviation."""

SLACK = 0.05
"""Of the powers that a GPU can draw: so much may a kind's be off for its being a mean."""

HIGHEST_W = 2000.0
"""No GPU draws more, where its own limit is not known."""

CHANGE_MS = tuple(15 * 1.2**step for step in range(19))
"""Ages at which power may jump: a power limit acts after tens to hundreds of milliseconds."""

LEADING = 4
MAX_KEPT = 40
MAX_NEAR = 12


@dataclass(frozen=True)
class Response:
    """What a value of a sensor speaks of: `duty` periods that ended `lag_ns` before it, smoothed over `smoothed_ns`."""

    duty: float = 1.0
    lag_ns: float = 0.0
    smoothed_ns: float = 0.0


@dataclass(frozen=True)
class Fit:
    """One model under one response: the power of each kind, and how well it is known."""

    kinds: Kinds
    response: Response
    found: Ridge
    """Its values are the powers in watts."""

    pull_w: Float64
    impossible: float

    def energy(self, seconds: Float64) -> tuple[float, float]:
        """Energy of so much time of each kind, and half of its 95 % interval."""
        blocks, single = (max(float(seconds @ one @ seconds), 0.0) for one in self.found.covariances)
        half = (
            INEXACT
            * student_t(self.found.freedom)
            * float(np.sqrt(min(max(blocks, single), MAX_CORRELATION_LENGTH * single)))
        )
        return float(seconds @ self.found.value), half + abs(float(seconds @ self.pull_w))

    def seconds_of(self, owners: Sequence[int]) -> Float64:
        """Of the kinds of some classes; of others 0."""
        return np.where(np.isin(self.kinds.owner, owners), self.kinds.seconds, 0.0)


class Readout:
    """The steps of a sensor over a window, as the fits need them.

    Args:
        steps: of the sensor.
        window: UTC ns.
        low_w, high_w: between which the GPU's power must lie; None: not known.
    """

    def __init__(
        self, steps: Steps, window: tuple[int, int], low_w: float, high_w: float | None, most: int = MOST_STEPS
    ) -> None:
        inside = steps.inside(window)
        self.index = inside
        if len(inside) > most:
            first = np.linspace(0, len(inside) - BLOCK_STEPS, most // BLOCK_STEPS).astype(np.int64)
            self.index = inside[(first[:, None] + np.arange(BLOCK_STEPS)).ravel()]
        self.window = window
        self.steps = steps
        self.low_w = low_w
        self.power_w = steps.power_w[self.index]
        self.high_w = max(high_w or HIGHEST_W, float(steps.power_w[inside].max(initial=0.0)))
        self.length_ns = np.diff(steps.edge_ns)[self.index].astype(np.float64)
        self.weight = self.length_ns / max(float(self.length_ns.mean()) if len(self) else 1.0, 1.0)
        self._cell_ns = max(round(steps.period_ns / CELLS), 1)
        if len(self):
            self._lay_grid()

    def __len__(self) -> int:
        return len(self.index)

    def _lay_grid(self) -> None:
        """Moments from long enough before each block of steps to its end; steps of one period lead in to each block."""
        period = self.steps.period_ns
        lead = int(np.ceil(4e6 * max(SMOOTHED_MS) / period))
        reach = round((lead + 13) * period)
        end_ns = self.steps.edge_ns[self.index + 1]
        begins = np.flatnonzero(np.r_[True, np.diff(self.index) > 1])
        pieces, ends, lengths, own, count = [], [], [], [], 0
        for begin, end in zip(begins, [*begins[1:], len(self)], strict=True):
            start = int(self.steps.edge_ns[self.index[begin]]) - reach
            piece = np.arange(start, int(end_ns[end - 1]) + round(period), self._cell_ns, dtype=np.int64)
            mine = (end_ns[begin:end] - start) / self._cell_ns
            ends += [count + mine[0] - np.arange(lead, 0, -1) * (period / self._cell_ns), count + mine]
            lengths += [np.full(lead, period), self.length_ns[begin:end]]
            own += [np.zeros(lead, dtype=np.bool_), np.ones(end - begin, dtype=np.bool_)]
            count += len(piece)
            pieces.append(piece)
        self._grid_ns, self._end_cell = np.concatenate(pieces), np.concatenate(ends)
        self._sampled, self._own = np.concatenate(lengths) / self._cell_ns, np.concatenate(own)

    def table(self, kinds: Kinds) -> Float64:
        """Seconds of each kind before each moment of the grid, shape (moments, kinds)."""
        return np.ascontiguousarray(kinds.until(self._grid_ns).T)

    def seen(self, table: Float64, response: Response) -> Float64:
        """Share of each kind in what each step speaks of, shape (kinds, steps)."""
        end, sampled = self._end_cell - response.lag_ns / self._cell_ns, self._sampled * response.duty
        if not response.smoothed_ns:
            end, sampled = end[self._own], sampled[self._own]
        share = (_at(table, end) - _at(table, end - sampled)) * (NS_PER_S / self._cell_ns / sampled)[:, None]
        if not response.smoothed_ns:
            return np.asarray(share.T)
        kept = np.exp(-self.steps.period_ns / response.smoothed_ns)
        taps = kept ** np.arange(max(int(4 * response.smoothed_ns / self.steps.period_ns), 2))
        taps /= taps.sum()
        return np.asarray([np.convolve(row, taps)[: len(row)] for row in share.T])[:, self._own]


def _at(table: Float64, cell: Float64) -> Float64:
    """The table between its moments."""
    whole = np.clip(cell.astype(np.int64), 0, len(table) - 2)
    part = np.clip(cell - whole, 0.0, 1.0)[:, None]
    first = table[whole]
    return np.asarray(first + (table[whole + 1] - first) * part)


def _smoother(response: Response, factor: float) -> Response:
    """With another time constant, and as late as before in all: the lag makes up for it."""
    smoothed_ns = min(response.smoothed_ns * factor, max(SMOOTHED_MS) * 1e6)
    return replace(response, smoothed_ns=smoothed_ns, lag_ns=response.lag_ns + response.smoothed_ns - smoothed_ns)


class _Model:
    """Kinds as a sensor may see them."""

    def __init__(self, readout: Readout, kinds: Kinds) -> None:
        self.readout = readout
        self.kinds = kinds
        self._table = readout.table(kinds)
        wide = (readout.high_w - readout.low_w) / 3
        self.prior = Prior.of(kinds.owner, (readout.low_w + readout.high_w) / 2, wide, DEVIATION_W)
        self.floor = (1e-4 * float(np.abs(readout.power_w).mean()) + 1e-3) ** 2

    def left(self, response: Response) -> float:
        """Mean square that the best powers leave."""
        share, power, weight = self.readout.seen(self._table, response), self.readout.power_w, self.readout.weight
        gram = (share * weight) @ share.T + 1e-6 * len(power) * np.eye(len(share)) / len(share)
        found = np.linalg.solve(gram, (share * weight) @ power)
        left = power - found @ share
        return max(float((weight * left) @ left) / len(power), self.floor)

    def settle(self, response: Response) -> Response:
        """The best lag near by."""
        period = self.readout.steps.period_ns
        least = self.left(response)
        for step in FINER:
            for off in (-step, step):
                one = replace(response, lag_ns=response.lag_ns + off * period)
                left = self.left(one)
                if left < least:
                    least, response = left, one
                    break
        return response

    def settle_both(self, response: Response) -> Response:
        """The best lag and time constant near by. Kinds that follow any course of power would take on the filter's."""
        period = self.readout.steps.period_ns
        least = self.left(response)
        for step, factor in zip(FINER, STRETCHED, strict=True):
            for _ in range(MOST_MOVES):
                near = [replace(response, lag_ns=response.lag_ns + off * period) for off in (-step, step)]
                near += [_smoother(response, by) for by in (1 / factor, factor) if response.smoothed_ns]
                left, one = min(((self.left(one), one) for one in near), key=lambda pair: pair[0])
                if left >= least:
                    break
                least, response = left, one
        return response

    def fit(self, response: Response) -> Fit:
        """With a prior of all that a GPU can draw."""
        readout = self.readout
        share, power, weight = readout.seen(self._table, response), readout.power_w, readout.weight
        min_block = max(2, int(np.ceil(response.duty)))  # what each value speaks of overlaps with those before
        found = ridge(share, power, weight, self.prior, self.floor, min_block=min_block)
        value, variance = found.value, found.variance
        blur = 2 * (readout.steps.edge_error_ns / readout.length_ns.mean()) ** 2 * (share * weight).sum(axis=1)
        blocks, single = map(np.diag, found.covariances)
        error = np.sqrt(np.maximum(np.maximum(blocks, single), 1e-12))
        slack = SLACK * (readout.high_w - readout.low_w)
        beyond = np.maximum(np.maximum(readout.low_w - slack - value, value - readout.high_w - slack), 0.0) / error
        return Fit(
            kinds=self.kinds,
            response=response,
            found=found,
            pull_w=np.linalg.solve(
                found.gram / variance + self.prior.precision + np.diag(blur) / variance,
                blur / variance * (value - power.mean()),
            ),
            impossible=float((beyond**2).sum()),
        )


def explanations(readout: Readout, work: KnownWork) -> list[Fit]:
    """All fits that the readings do not rule out, the most likely first; those of batches' parts among them."""
    few = Readout(readout.steps, readout.window, readout.low_w, readout.high_w, SCREENING_STEPS)
    plain, period = work.plain(readout.window), readout.steps.period_ns
    scout, model = _Model(few, plain), _Model(readout, plain)
    inexact = (NOT_LINEAR * float(readout.power_w.mean())) ** 2
    every = list(_responses(readout.steps))
    coarse = sorted((scout.left(response), at) for at, response in enumerate(every))
    families: dict[tuple[float, float], Response] = {}
    for _, at in coarse:
        families.setdefault((every[at].duty, every[at].smoothed_ns), every[at])
    leading = [*list(families.values())[:LEADING], *(families[duty, 0.0] for duty in DUTIES[:2])]
    leading = list(dict.fromkeys(leading))
    tried = [
        model.fit(response) for response in [*map(scout.settle, leading), *_near(coarse, every, MAX_KEPT, inexact)]
    ]
    constants = {0.0, *(response.smoothed_ns for response in leading[:2])}
    likely = [response for response in every if response.duty <= 1 and response.smoothed_ns in constants]
    splits = (*work.splits(readout.window), *work.batch_parts(readout.window))
    change, found = _change(few, work, leading, every)
    for kinds in (*splits, change):
        starts = [*leading, found] if kinds is change else leading
        scout, model = _Model(few, kinds), _Model(readout, kinds)
        left = sorted((scout.left(response), at) for at, response in enumerate(likely))
        near = _near(left, likely, MAX_NEAR, inexact)
        settled = [scout.settle(response) for response in dict.fromkeys([*starts, *near[:2]])]
        best = sorted(settled, key=scout.left)[:3]
        settled += [replace(one, lag_ns=one.lag_ns + off * period) for one in best for off in LAG_SLACK]
        settled += [replace(one, smoothed_ns=one.smoothed_ns * off) for one in best for off in SMOOTH_SLACK]
        settled += near
        tried += [model.fit(response) for response in dict.fromkeys(settled)]
    return _not_ruled_out(tried, inexact)


def _near(left: list[tuple[float, int]], responses: Sequence[Response], most: int, inexact: float) -> list[Response]:
    """Those that leave little more than the best, or every so many of them."""
    near = [responses[at] for one, at in left if one <= WORSE * max(left[0][0], inexact)]
    return near[:: -(-len(near) // most)]


def _change(
    readout: Readout, work: KnownWork, leading: Sequence[Response], every: Sequence[Response]
) -> tuple[Kinds, Response]:
    """Split at the age at which a change of power explains the most, and under which response it does."""

    def split(age_ms: float) -> _Model:
        return _Model(readout, work.change(readout.window, age_ms))

    def tried(age_ms: float, responses: Sequence[Response]) -> tuple[float, float, Response]:
        model = split(age_ms)
        return min(((model.left(one), age_ms, one) for one in responses), key=lambda found: found[0])

    _, age_ms, _ = min((tried(age_ms, leading) for age_ms in CHANGE_MS), key=lambda found: found[0])
    _, _, response = tried(age_ms, [*leading, *every])
    for factor in STRETCHED[1:]:
        response = split(age_ms).settle_both(response)
        near = (tried(age_ms * by, [response]) for by in (1.0, 1 / factor, factor))
        _, age_ms, _ = min(near, key=lambda found: found[0])
    model = split(age_ms)
    return model.kinds, model.settle_both(response)


def _responses(steps: Steps) -> Iterable[Response]:
    for duty in DUTIES:
        for lag in LAG_PERIODS:
            yield Response(duty, lag * steps.period_ns)
    for smoothed_ms in SMOOTHED_MS:
        if smoothed_ms * 1e6 >= steps.period_ns / 4:
            for duty in (1.0, 0.25):
                for lag in LAG_PERIODS[1:8]:
                    yield Response(duty, lag * steps.period_ns, smoothed_ms * 1e6)


def _not_ruled_out(fits: Sequence[Fit], inexact: float) -> list[Fit]:
    """Those that leave little more than the best that is possible; should none be possible, than the best."""
    ordered = sorted(fits, key=lambda one: one.found.score)
    ordered = [fit for fit in ordered if fit.impossible <= RULED_OUT] or ordered
    best = ordered[0]
    correlation_length = _correlation_length(best.found.residual)
    least = WORSE * max(best.found.variance, inexact)
    return [
        fit
        for fit in ordered
        if fit.found.variance <= least
        or (fit.found.score - best.found.score) / correlation_length <= RULED_OUT  # for autocorrelated residuals
    ]


def _correlation_length(residual: Float64) -> float:
    """How many successive residuals count as one: 1 where they are independent."""
    count, power = len(residual), float(residual @ residual)
    found = 1.0
    if count < 10 or power <= 0:
        return found
    for lag in range(1, min(count // 5, 50)):
        correlation = float(residual[:-lag] @ residual[lag:]) / power
        if correlation < 2 / np.sqrt(count):
            break
        found += 2 * correlation
    return found
