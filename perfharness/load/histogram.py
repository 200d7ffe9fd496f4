"""HDR histograms of nanoseconds, filled from arrays.

The buckets and the encoding are those of the package `hdrhistogram`; recording value by value would take a microsecond
each, of the interpreter that the target needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.distribution import install_command
from perfharness.errors import ToolNotFoundError

HIGHEST_NS = 3_600_000_000_000
DIGITS = 3
_HALF_BITS = 10
_HALF = 1 << _HALF_BITS
_BUCKETS = 32
_LENGTH = (_BUCKETS + 1) * _HALF

Ints = npt.NDArray[np.int64]


def require_load(what: str) -> None:
    """Raises `ToolNotFoundError` where the extra is not installed."""
    try:
        import hdrh.histogram  # noqa: F401
    except ImportError as error:
        raise ToolNotFoundError(f"{what} needs hdrhistogram, not installed here; {install_command('load')}") from error


class Histogram:
    """Counts of values up to an hour, each within 0.1 %; larger ones count as an hour. Sum and maximum are exact."""

    def __init__(self) -> None:
        self._counts: Ints = np.zeros(_LENGTH, np.int64)
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0

    def add(self, values_ns: Ints) -> None:
        """Count the values; negative ones as 0."""
        if not len(values_ns):
            return
        values = np.clip(values_ns, 0, HIGHEST_NS)
        indices, counts = np.unique(_index(values), return_counts=True)
        self._counts[indices] += counts
        self.count += len(values)
        self.sum_ns += int(values.sum())
        self.max_ns = max(self.max_ns, int(values.max()))

    def merge(self, other: Histogram) -> None:
        """Count the values of another one too."""
        self._counts += other._counts
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def value_at_rank(self, rank: int) -> int:
        """The `rank`-th smallest value, from 1 to `count`: the highest one of its bucket, at most the maximum."""
        index = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_highest(index), self.max_ns)

    def buckets(self) -> tuple[Ints, Ints, Ints]:
        """Lowest value, highest value and count of each bucket that holds any."""
        used = np.flatnonzero(self._counts)
        low, high = (np.array([end(int(one)) for one in used], np.int64) for end in (_lowest, _highest))
        return low, high, self._counts[used]

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return {"hdr": self.encode(), "sum_ns": self.sum_ns, "max_ns": self.max_ns}

    def encode(self) -> str | None:
        """V2 encoding in base64; None of an empty one."""
        if not self.count:
            return None
        from hdrh.histogram import HdrHistogram

        made = HdrHistogram(1, HIGHEST_NS, DIGITS)
        np.frombuffer(made.counts, np.uint64)[:] = self._counts
        made.total_count = self.count
        used = np.flatnonzero(self._counts)
        made.min_value, made.max_value = _lowest(int(used[0])), self.max_ns
        return str(made.encode().decode("ascii"))

    @staticmethod
    def of_json(content: dict[str, Any]) -> Histogram:
        """As `to_json` wrote it."""
        made = Histogram.decode(content.get("hdr"))
        made.sum_ns, made.max_ns = int(content["sum_ns"]), int(content["max_ns"])
        return made

    @staticmethod
    def decode(text: str | None) -> Histogram:
        """What `encode` made; sum and maximum as exact as the buckets."""
        made = Histogram()
        if text is None:
            return made
        from hdrh.histogram import HdrHistogram

        read = HdrHistogram.decode(text)
        counts = np.frombuffer(read.counts, np.uint64).astype(np.int64)[:_LENGTH]
        made._counts[: len(counts)] = counts
        used = np.flatnonzero(made._counts)
        made.count = int(made._counts.sum())
        middles = np.array([(_lowest(int(one)) + _highest(int(one))) / 2 for one in used])
        made.sum_ns = round(float((middles * made._counts[used]).sum()))
        made.max_ns = _highest(int(used[-1])) if len(used) else 0
        return made


def _index(values: Ints) -> Ints:
    """The counter of each value. `frexp` has the number of bits of an integer below 2**53 as its exponent."""
    bits = np.frexp((values | (2 * _HALF - 1)).astype(np.float64))[1].astype(np.int64)
    bucket = bits - (_HALF_BITS + 1)
    found: Ints = ((bucket + 1) << _HALF_BITS) + (values >> bucket) - _HALF
    return found


def _lowest(index: int) -> int:
    bucket = (index >> _HALF_BITS) - 1
    return index if bucket < 0 else ((index & (_HALF - 1)) + _HALF) << bucket


def _highest(index: int) -> int:
    return _lowest(index) + (1 << max((index >> _HALF_BITS) - 1, 0)) - 1
