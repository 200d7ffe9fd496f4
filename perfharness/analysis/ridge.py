"""Ridge regression of readings on what ran during each of them, as energy and counters are explained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.result import Float64
from perfharness.model.trace import Int64

RULED_OUT = 14.0
"""Log-likelihood, doubled, by which a fit must be worse than the best."""

INEXACT = 1.6
"""No model is exact: so much wider than sampling alone suggests is each fit's interval."""


@dataclass(frozen=True)
class Prior:
    """What the value of each kind of work is taken to be where the readings do not determine it.

    `precision` is the inverse of its covariance, shape (kinds, kinds); `middle` its mean, of every kind.
    """

    precision: Float64
    middle: float

    @classmethod
    def of(cls, owner: Int64, middle: float, wide: float, deviation: float) -> Prior:
        """Standard deviations: `wide` of a class, `deviation` of the kinds of one class (`owner`) among themselves."""
        same = owner[:, None] == owner
        return cls(np.linalg.inv(wide**2 * same + deviation**2 * np.eye(len(same))), middle)


@dataclass(frozen=True)
class Ridge:
    """The value of each kind that explains the readings best.

    Attributes:
        covariances: of the values, from blocks of successive readings and from all; shape (kinds, kinds) each.
        freedom: degrees of freedom of the errors, where each block of successive readings counts as one.
        used: readings that the values use up.
        blocks: of successive readings.
        score: -2 log-likelihood with a penalty for what the values use; the smaller, the better.
        variance: of a reading of weight 1.
        residual: of each reading, times the root of its weight.
        gram: of the shares, weighted.
    """

    value: Float64
    covariances: tuple[Float64, Float64]
    freedom: int
    used: float
    blocks: int
    score: float
    variance: float
    residual: Float64
    gram: Float64


def ridge(
    share: Float64,
    reading: Float64,
    weight: Float64,
    prior: Prior,
    floor: float,
    *,
    min_block: int = 2,
    settled: float = 0.0,
) -> Ridge:
    """Fit, the variance of the readings included.

    Args:
        share: of each kind in what each reading is the mean of, shape (kinds, readings).
        reading, weight: shape (readings,); weights are 1 in the mean.
        floor: the least variance.
        min_block: of successive readings that count as one where the errors are estimated.
        settled: relative change of the variance that ends the iteration early.
    """
    count = len(reading)
    gram, target = (share * weight) @ share.T, (share * weight) @ reading
    pull = prior.precision.sum(axis=1) * prior.middle
    variance = max(float(np.var(reading)), floor)
    for _ in range(4):
        inverse = np.linalg.inv(gram / variance + prior.precision)
        value = inverse @ (target / variance + pull)
        residual = (reading - value @ share) * np.sqrt(weight)
        used = float(np.trace(inverse @ gram) / variance)
        before, variance = variance, max(float(residual @ residual) / max(count - used, 1.0), floor)
        if abs(variance - before) <= settled * before:
            break
    block = max(min_block, round(count ** (1 / 3)))
    scores = np.add.reduceat(share * (residual * np.sqrt(weight) / variance), np.arange(0, count, block), axis=1)
    blocks = scores.shape[1]
    sandwich = inverse @ (scores @ scores.T * (blocks / max(blocks - 1, 1)) + prior.precision) @ inverse
    return Ridge(
        value=value,
        covariances=(sandwich, inverse),
        freedom=max(round(blocks - used), 1),
        used=used,
        blocks=blocks,
        score=count * float(np.log(max(float(residual @ residual) / count, floor))) + 2 * used,
        variance=variance,
        residual=residual,
        gram=gram,
    )
