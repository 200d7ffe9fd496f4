"""The clock while each class of work ran, out of the counters themselves.

Shares of cycles are means in which what ran at a lower clock has less weight: a window in which work with the value p
ran for the part t at r times the clock of the rest reads p r t / (r t + 1 - t), which bends with t. How much it bends
is r. So the ratios of the clocks are the ones with which all counters of cycles are explained best. NVML does not tell
them: it hands out one clock in 100 ms, some time later, of a GPU whose clock follows its load within milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.counters.readings import SAYS_SOMETHING, some_of
from perfharness.analysis.ridge import INEXACT
from perfharness.model.result import Float64

STEADY = 1.01
"""Clocks whose highest is less above the lowest are one clock."""

NOISE = 0.002
"""Of the peak: readings are not better than that."""

WIDE = 0.5
"""Of the peak: standard deviation of the prior of a class's value, about one half."""

ROUNDS = 3
"""In which the noise of each counter is found."""

STEP = 1e-4
MIN_BLOCK = 2


@dataclass(frozen=True)
class Clocks:
    """Clocks of the classes of work, relative to each other.

    Attributes:
        ratio: to the highest clock seen, of each class, and last of the time in which nothing ran. Only ratios among
            them were found.
        covariances: of their logarithms, two ways; shape (classes + 1, classes + 1) each.
        changed: the highest clock seen over the lowest.
    """

    ratio: Float64
    covariances: tuple[Float64, ...]
    changed: float

    @property
    def is_steady(self) -> bool:
        """Whether there is but one clock."""
        return not self.covariances

    def nudged(self, which: int, by: float) -> Clocks:
        """With another logarithm of one of them."""
        ratio = self.ratio.copy()
        ratio[which] *= np.exp(by)
        return Clocks(ratio, self.covariances, self.changed)

    def error(self, slope: Float64) -> float:
        """Standard error of what changes so fast with the logarithm of each clock."""
        return float(np.sqrt(max((max(float(slope @ one @ slope), 0.0) for one in self.covariances), default=0.0)))


def find_clocks(share: Float64, values: Sequence[Float64], changed: float) -> Clocks:
    """The clocks with which readings that are means over cycles are explained best.

    Args:
        share: the part of each window in which each class ran, shape (classes, windows).
        values: counters of cycles; NaN: not read.
        changed: the highest clock seen over the lowest; each clock is taken to lie about between them.
    """
    classes = len(share)
    if changed <= STEADY:
        return Clocks(np.ones(classes + 1), (), changed)
    read = [column for column in values if np.nanmax(column, initial=0.0) > SAYS_SOMETHING]
    known = ~np.isnan(np.array(read)).any(axis=0) if read else np.zeros(share.shape[1], dtype=np.bool_)
    some = some_of(np.flatnonzero(known))
    middle, wide = -np.log(changed) / 2, np.log(changed) / 2
    prior = np.eye(classes + 1) / wide**2
    if not len(some):
        return Clocks(np.full(classes + 1, np.exp(middle)), (np.linalg.inv(prior),), changed)
    used = np.array([column[some] for column in read]).T
    part = np.vstack([share[:, some], np.maximum(1 - share[:, some].sum(axis=0), 0.0)])
    logs, noise = np.full(classes + 1, middle), np.full(used.shape[1], 10 * NOISE)
    for _ in range(ROUNDS):
        logs, slopes, left = _fitted(part, used, logs, noise, prior, middle)
        noise = np.maximum(np.sqrt((left**2).mean(axis=0)), NOISE)
    # Slopes (clocks, windows, counters) and residuals in units of the noise; what errs together is summed first.
    slopes, left = slopes / noise, left / noise
    inverse = np.linalg.inv(np.einsum("iwc,jwc->ij", slopes, slopes) + prior)
    score = (slopes * left).sum(axis=2)
    block = max(MIN_BLOCK, round(len(some) ** (1 / 3)))
    blocks = np.add.reduceat(score, np.arange(0, len(some), block), axis=1)
    sandwich = inverse @ (blocks @ blocks.T + prior) @ inverse
    return Clocks(np.exp(logs), (INEXACT**2 * sandwich, INEXACT**2 * inverse), changed)


def _fitted(
    part: Float64, used: Float64, logs: Float64, noise: Float64, prior: Float64, middle: float
) -> tuple[Float64, Float64, Float64]:
    """Levenberg's method: the logarithms, the slopes of the misfit there, and the misfit."""
    damping, left = 1e-3, _misfit(part, used, logs)
    cost = _cost(left, noise, logs, prior, middle)
    slopes = _slopes(part, used, logs, left)
    for _ in range(30):
        scaled = slopes / noise
        gram = np.einsum("iwc,jwc->ij", scaled, scaled) + prior
        gradient = (scaled * (left / noise)).sum(axis=(1, 2)) + prior @ (logs - middle)
        step = -np.linalg.solve(gram + damping * np.diag(np.diag(gram)), gradient)
        tried = logs + step
        misfit = _misfit(part, used, tried)
        found = _cost(misfit, noise, tried, prior, middle)
        if found <= cost:
            small = cost - found <= 1e-3
            logs, left, cost, damping = tried, misfit, found, damping / 10
            slopes = _slopes(part, used, logs, left)
            if small:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    return logs, slopes, left


def _cost(left: Float64, noise: Float64, logs: Float64, prior: Float64, middle: float) -> float:
    off = logs - middle
    return float(((left / noise) ** 2).sum() + off @ prior @ off)


def _misfit(part: Float64, used: Float64, logs: Float64) -> Float64:
    """Of each counter in each window, with the values of the classes that suit these clocks best."""
    design = of_cycles(part[:-1], np.exp(logs), np.arange(len(part) - 1)).T
    gram = design.T @ design + (NOISE / WIDE) ** 2 * np.eye(design.shape[1])
    value = np.linalg.solve(gram, design.T @ used + (NOISE / WIDE) ** 2 * 0.5)
    return np.asarray(design @ value - used)


def _slopes(part: Float64, used: Float64, logs: Float64, left: Float64) -> Float64:
    return np.array([(_misfit(part, used, logs + STEP * one) - left) / STEP for one in np.eye(len(logs))])


def of_cycles(
    share: Float64, ratio: Float64, owner: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Float64:
    """Parts of the cycles of each window, from parts of its time.

    Args:
        share: of each kind of work, shape (kinds, windows).
        ratio: of each class's clock, last that of the time in which nothing ran.
        owner: the class of each kind.
    """
    cycles = share * ratio[np.asarray(owner)][:, None]
    idle = np.maximum(1 - share.sum(axis=0), 0.0) * ratio[-1]
    return np.asarray(cycles / (cycles.sum(axis=0) + idle))
