"""How exactly numbers stand in result files."""

from __future__ import annotations

from bisect import bisect_right

DECIMALS = 6
"""Of numbers in result files: of a time in ms, whole nanoseconds."""

BELOW = tuple(float(f"1e{exponent}") for exponent in range(-16, 0))
"""Numbers below 0.1 keep six digits that mean something: a time of an item may be less than a nanosecond."""


def decimals(size: float) -> int:
    """Digits after the point with which a number of that size is written."""
    return DECIMALS + len(BELOW) - bisect_right(BELOW, size) if size else DECIMALS


def figure(value: float) -> float:
    """A number as result files have it."""
    return round(float(value), decimals(abs(value)))
