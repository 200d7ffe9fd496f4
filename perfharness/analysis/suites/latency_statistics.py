"""Statistics of repeated iterations, with 95 % intervals where there are enough of them.

Neighbouring iterations are autocorrelated, so that n of them are worth n / inflation independent ones. The
inflation is the sum of the autocorrelations in a window that grows until it holds three times that sum (Sokal, Monte
Carlo Methods in Statistical Mechanics, 1997, section 3), plus one standard error of it; it is not less than what the
lowest frequencies of the periodogram show (Heidelberger and Welch, A spectral method for confidence interval
generation, Communications of the ACM 24, 1981), nor than 1. Where the window leaves too few degrees of freedom, no
interval is given.

Means: Student's t with Hall's transformation for skewed values (On the removal of skewness by transformation, Journal
of the Royal Statistical Society B 54, 1992). Quantiles: order statistics (Le Boudec, Performance Evaluation of Computer
and Communication Systems, 2010, theorem 2.1) of so many independent values. When to stop: the relative width of the
median's interval, as Hoefler and Belli advise (Scientific Benchmarking of Parallel Computing Systems, SC 2015, rules 5
and 6, section 4.2.2).

`scripts/interval_coverage` simulates how often the intervals hold the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np

from perfharness.analysis.statistics import PERCENTILES, min_count, student_t
from perfharness.analysis.suites.bench_figures import overlap
from perfharness.model.bench import Estimate, LatencyStats
from perfharness.model.result import Float64

MIN_FOR_INTERVAL = 200
"""Fewer iterations cannot distinguish autocorrelated from independent, nor show what happens in one of a hundred."""

WINDOW = 3.0
"""The window of autocorrelations is so many times as long as their sum."""

MIN_FREEDOM = 8.0
"""Degrees of freedom that the window has to leave: values over the width of the window on both sides."""

LOW_FREQUENCIES = (2, 4, 8, 16)
"""Means of so many of the lowest ordinates of the periodogram; slow changes hide below faster noise otherwise."""

MAX_SKEWNESS = 0.5
"""Of the mean; beyond it a handful of long iterations decide the mean."""

MIN_BEYOND = 5.0
"""Independent values beyond a quantile, on its thinner side."""

EXACT_UP_TO = 2000
"""Above it the normal law with a correction for continuity stands for the binomial."""

MIN_FOR_DRIFT = 6
"""Fewer values have no 95 % interval of the median: 2 / 2**5 is more than 5 %."""

DRIFT_PERCENT = 2.0
"""A change between first and last third that is reported."""


def latency_stats(milliseconds: Float64, warmup_iterations: int, *, stable: bool | None = None) -> LatencyStats | None:
    """All figures of the timed iterations, in their order; None where there are none.

    Args:
        milliseconds: of each iteration.
        stable: whether the median had settled; None where that was not asked for.
    """
    count = len(milliseconds)
    if not count:
        return None
    estimates = {name: quantile_estimate(milliseconds, q / 100) for name, q in PERCENTILES.items()}
    median = estimates["p50"]
    assert median is not None
    return LatencyStats(
        iterations=count,
        warmup_iterations=warmup_iterations,
        mean=mean_estimate(milliseconds),
        std=_figure(milliseconds.std(ddof=1)) if count > 1 else None,
        median=median,
        p50=median.value,
        p90=estimates["p90"],
        p95=estimates["p95"],
        p99=estimates["p99"],
        min=_figure(milliseconds.min()),
        max=_figure(milliseconds.max()),
        stable=stable,
        drift_percent=drift_percent(milliseconds),
    )


def mean_estimate(values: Float64) -> Estimate:
    """Mean and its interval; values in the order in which they were measured."""
    mean = float(values.mean())
    found = information_of(values)
    if isinstance(found, str):
        return Estimate(value=_figure(mean), reason=found)
    error = float(values.std(ddof=1)) * sqrt(found.inflation / len(values))
    skewness = _skewness(values) * sqrt(found.inflation / len(values))
    if abs(skewness) > MAX_SKEWNESS:
        return Estimate(value=_figure(mean), reason="a few long iterations decide the mean; measure more")
    t = student_t(int(found.freedom))
    low, high = mean - _hall(t, skewness) * error, mean - _hall(-t, skewness) * error
    return Estimate(value=_figure(mean), low=_figure(low), high=_figure(high))


def quantile_estimate(values: Float64, quantile: float) -> Estimate | None:
    """A quantile (linear between the closest ranks) and its interval by order statistics.

    None where there are too few values for the quantile to be more than the largest one.
    """
    count = len(values)
    if count < min_count(round(quantile * 100)):
        return None
    value = float(np.quantile(values, quantile))
    ranks = _ranks(values, value, quantile)
    if isinstance(ranks, str):
        return Estimate(value=_figure(value), reason=ranks)
    ordered = np.sort(values)
    low, high = min(value, ordered[ranks[0]]), max(value, ordered[ranks[1]])
    return Estimate(value=_figure(value), low=_figure(low), high=_figure(high))


@dataclass(frozen=True)
class Information:
    """How much information autocorrelated values have about their mean.

    Args:
        inflation: variance of the mean over that of as many independent values.
        freedom: degrees of freedom of that variance.
        window: lags of the autocorrelation that it is from.
    """

    inflation: float
    freedom: float
    window: int


def information_of(values: Float64) -> Information | str:
    """Of values in the order in which they were measured, or why an interval would be a guess."""
    count = len(values)
    if count < MIN_FOR_INTERVAL:
        return f"{count} iterations are too few for an interval; measure {MIN_FOR_INTERVAL} or more"
    centred = values - values.mean()
    power = float(centred @ centred)
    if power <= 0:
        return Information(1.0, count / (2 * WINDOW + 1), int(WINDOW))
    spectrum = np.abs(np.fft.rfft(centred, 1 << (2 * count - 1).bit_length())) ** 2
    sums = 1 + 2 * np.cumsum(np.fft.irfft(spectrum)[1:count]) / power
    wide = np.flatnonzero(np.arange(1, count) >= WINDOW * np.maximum(sums, 1.0))
    window = int(wide[0]) + 1 if len(wide) else count - 1
    freedom = count / (2 * window + 1)
    if freedom < MIN_FREEDOM:
        wanted = ceil(2 * MIN_FREEDOM * (2 * window + 1) / 100) * 100
        return f"iterations are autocorrelated over {window} neighbours; measure {wanted} or more"
    own = max(1.0, float(sums[window - 1])) * (1 + 1 / freedom + sqrt(2 / freedom))
    low = np.abs(np.fft.rfft(centred)[1 : max(LOW_FREQUENCIES) + 1]) ** 2 / power
    return Information(max(own, *(float(low[:number].mean()) for number in LOW_FREQUENCIES)), freedom, window)


def relative_half_width_percent(values: Float64) -> float | None:
    """Half of the width of the median's interval, in percent of the median; None where there is no interval."""
    median = quantile_estimate(values, 0.5) if len(values) else None
    if median is None or median.interval is None or median.value <= 0:
        return None
    return 100 * (median.interval[1] - median.interval[0]) / 2 / median.value


def is_settled(values: Float64, percent: float) -> bool:
    """Whether the median's interval is within so many percent on both sides, and a drift would have been seen."""
    half = relative_half_width_percent(values)
    if half is None or half > percent or len(values) < 3 * MIN_FOR_INTERVAL:
        return False
    return _outer_thirds(values) is not None and drift_percent(values) is None


def drift_percent(values: Float64) -> float | None:
    """How much the median of the last third is above that of the first, in percent, where that is no chance.

    None where their intervals touch, where it is less than `DRIFT_PERCENT`, or where they have none.
    """
    if (thirds := _outer_thirds(values)) is None or thirds[0].value <= 0 or overlap(*thirds):
        return None
    change = 100 * (thirds[1].value - thirds[0].value) / thirds[0].value
    return round(change, 3) if abs(change) >= DRIFT_PERCENT else None


def _outer_thirds(values: Float64) -> tuple[Estimate, Estimate] | None:
    """Medians of the first and the last third; None where one has no interval."""
    third = len(values) // 3
    if third < MIN_FOR_DRIFT:
        return None
    first, last = (_median_of_third(_level(part)) for part in (values[:third], values[-third:]))
    return None if first is None or last is None or not (first.interval and last.interval) else (first, last)


def _median_of_third(values: Float64) -> Estimate | None:
    """Few values are taken for independent here: a warning too many harms less than an interval too narrow."""
    if len(values) >= MIN_FOR_INTERVAL:
        return quantile_estimate(values, 0.5)
    low, high = binomial_ranks(len(values), 0.5)
    ordered = np.sort(values)
    return Estimate(value=float(np.median(values)), low=ordered[low], high=ordered[high])


def _level(values: Float64) -> Float64:
    """Without their own trend, for a drift continues within the thirds."""
    position = np.arange(len(values)) - (len(values) - 1) / 2
    return np.asarray(values - position * (position @ values) / (position @ position))


def autocorrelation(values: Float64) -> float | None:
    """Of neighbouring values, -1 to 1; None where there are too few, or all are the same."""
    if len(values) < 4:
        return None
    off = values - values.mean()
    power = float((off * off).sum())
    return float((off[1:] * off[:-1]).sum()) / power if power > 0 else None


def rate_estimate(latency: Estimate, items: float) -> Estimate:
    """Items per second, of the milliseconds that so many of them take together."""
    return Estimate(
        value=_figure(1e3 * items / latency.value),
        low=None if latency.high is None else _figure(1e3 * items / latency.high),
        high=None if latency.low is None or latency.low <= 0 else _figure(1e3 * items / latency.low),
        reason=latency.reason,
    )


def _skewness(values: Float64) -> float:
    """Third moment over the cube of the deviation; 0 of equal values."""
    centred = values - values.mean()
    variance = float((centred**2).mean())
    return float((centred**3).mean()) / variance**1.5 if variance > 0 else 0.0


def _hall(t: float, skewness: float) -> float:
    """What Student's `t` is for a mean of that skewness, in standard errors."""
    if abs(skewness) < 1e-6:
        return t
    return float(np.cbrt(1 + skewness * (t - skewness / 6)) - 1) * 3 / skewness


def _ranks(values: Float64, value: float, quantile: float) -> tuple[int, int] | str:
    """Ranks in the ordered values that enclose the quantile in 95 of 100 cases, or why there are none."""
    count = len(values)
    found = information_of(values)
    below = information_of((values <= value).astype(np.float64))
    if isinstance(found, str):
        return found
    if isinstance(below, str):
        return below
    independent = int(count / below.inflation)
    beyond = independent * min(quantile, 1 - quantile)
    low, high = binomial_ranks(independent, quantile) if beyond >= MIN_BEYOND else (-1, independent)
    if low < 0 or high >= independent:
        return f"{count} iterations are worth {independent} independent ones, too few for this quantile"
    return floor(low * count / independent), ceil((high + 1) * count / independent) - 1


def binomial_ranks(count: int, quantile: float) -> tuple[int, int]:
    """From 0; -1 or `count` where no rank encloses."""
    if count > EXACT_UP_TO:
        half = 1.96 * sqrt(count * quantile * (1 - quantile)) + 0.5
        return int(np.floor(count * quantile - half)) - 1, int(np.ceil(count * quantile + half))
    from scipy.special import bdtr  # takes long to import

    below = bdtr(np.arange(count + 1.0), count, quantile)
    # P(x[low] > q) = P(at most `low` values below q) must be 2.5 % at most; likewise above.
    low = int(np.searchsorted(below, 0.025, side="right")) - 1
    high = int(np.searchsorted(below, 0.975, side="left"))
    return low, high


def _figure(value: float) -> float:
    return round(float(value), 9)
