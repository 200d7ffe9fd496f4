"""Numbers as text."""

from __future__ import annotations

from math import floor, log10
from typing import Literal

NOT_MEASURED = "-"
"""Text of a number that was not measured."""

Kind = Literal["text", "ms", "count", "share", "number"]


def number(value: float | int | None, kind: Kind = "number") -> str:
    """Format a number by its kind."""
    if value is None:
        return NOT_MEASURED
    if kind == "share":
        return f"{100 * value:.1f} %"
    if kind == "ms":
        return ms(value)
    if kind == "count" or isinstance(value, int):
        return f"{value:,.0f}"
    return significant(value)


def ms(value: float) -> str:
    """Milliseconds in a table: three decimals, more below 0.1 ms."""
    size = abs(value)
    return f"{value:,.3f}" if size >= 0.1 or not size else f"{value:.5f}" if size >= 1e-3 else f"{value:.3g}"


def with_half(value: float, half: float) -> str:
    """Mean ± half of its interval, to two significant digits of the half."""
    digits = max(1 - floor(log10(half)), 0) if half > 0 else 3
    return f"{value:,.{digits}f} ±{half:,.{digits}f}"


def milliseconds(value: float) -> str:
    """Milliseconds in a sentence, with the unit."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} ms"


def significant(value: float) -> str:
    """Four significant digits; whole numbers from 10,000."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 10_000 else f"{value:,.4g}" if size >= 1e-4 or not size else f"{value:.3g}"


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def percent(share: float | None, digits: int = 0) -> str:
    """Share (0 to 1) in percent."""
    return NOT_MEASURED if share is None else f"{100 * share:.{digits}f} %"


def interval(low: float | None, high: float | None, kind: Kind = "ms") -> str | None:
    """`1.0 to 2.0`, or None if an end is unknown."""
    return None if low is None or high is None else f"{number(low, kind)} to {number(high, kind)}"


def size(count: float | None) -> str:
    """Bytes in the largest fitting binary unit."""
    if count is None:
        return NOT_MEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.4g} {unit}"


def scaled(value: float | None, unit: float) -> float | None:
    """Value in another unit."""
    return None if value is None else value / unit


def change(ratio: float | None, digits: int = 1) -> str:
    """Ratio as a signed change in percent."""
    return NOT_MEASURED if ratio is None else f"{100 * (ratio - 1):+.{digits}f} %"


def factor(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """`1.23x`, or `1.23x ~` if the interval includes 1."""
    if ratio is None:
        return NOT_MEASURED
    may_be_equal = low is not None and high is not None and low <= 1 <= high
    return f"{ratio:.2f}x{' ~' if may_be_equal else ''}"
