"""Intervals and tests of proportions.

Wilson's interval (Wilson, JASA 22, 1927). McNemar's test on pairs, exact: the discordant pairs are binomial with 1/2
(McNemar, Psychometrika 12, 1947). The interval of a paired difference: one half added to each of the four cells, then
Wald (Agresti and Min, Statistics in Medicine 24, 2005). Several tests: Holm, Scand. J. Statistics 6, 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, lgamma, log, sqrt

Z_975 = 1.959963984540054


def wilson(successes: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion; count is at least 1."""
    share, z2 = successes / count, Z_975**2
    middle = share + z2 / (2 * count)
    half = Z_975 * sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    scale = 1 + z2 / count
    low = 0.0 if successes == 0 else (middle - half) / scale
    high = 1.0 if successes == count else (middle + half) / scale
    return low, high


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided p that so many more pairs changed one way than the other by chance."""
    count, fewer = lost + gained, min(lost, gained)
    if lost == gained:
        return 1.0
    tail = fsum(
        exp(lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) - count * log(2)) for k in range(fewer + 1)
    )
    return min(1.0, 2 * tail)


def paired_difference(lost: int, gained: int, count: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / count, where so many of count pairs changed."""
    whole, down, up = count + 2, lost + 0.5, gained + 0.5
    middle = (up - down) / whole
    half = Z_975 * sqrt((up + down) - (up - down) ** 2 / whole) / whole
    return max(-1.0, middle - half), min(1.0, middle + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, made larger for their number."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
