"""How exactly numbers stand in result files."""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import Any

DECIMALS = 6  # of a time in ms: whole nanoseconds
BELOW = tuple(float(f"1e{exponent}") for exponent in range(-16, 0))
"""Numbers below 0.1 keep six digits that mean something: a time per item may be less than a nanosecond."""


def decimals(size: float) -> int:
    """Digits after the point with which a number of that size is written."""
    return DECIMALS + len(BELOW) - bisect_right(BELOW, size) if size else DECIMALS


def figure(value: float) -> float:
    """A number as result files have it."""
    return round(float(value), decimals(abs(value)))


def rounded(value: Any) -> Any:
    """Plain JSON values of dataclasses' contents: enumerations by value, numbers as in all files."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {rounded(key): rounded(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(below) for below in value]
    return figure(value) if isinstance(value, float) else value
