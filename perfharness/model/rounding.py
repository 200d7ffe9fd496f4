"""Precision of numbers in result files."""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import Any

DECIMALS = 6  # a time in ms, to the nanosecond
BELOW = tuple(float(f"1e{exponent}") for exponent in range(-16, 0))
"""Numbers below 0.1 keep six significant digits, because a time per item may be below a nanosecond."""


def decimals(size: float) -> int:
    """Digits after the decimal point for a number of this size."""
    return DECIMALS + len(BELOW) - bisect_right(BELOW, size) if size else DECIMALS


def figure(value: float) -> float:
    """Round a number for result files."""
    return round(float(value), decimals(abs(value)))


def rounded(value: Any) -> Any:
    """Convert dataclass contents to plain JSON values: enumerations by value, numbers rounded."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {rounded(key): rounded(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(below) for below in value]
    return figure(value) if isinstance(value, float) else value
