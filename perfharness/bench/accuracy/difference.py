"""One output against the same output of a baseline, value by value, over any number of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.figure import Figure, Figures, OutputError, figure, nothing

BLOCK = 1 << 20
"""Values per block of the computation, in float64."""

SUMS = (
    "samples", "count", "compared", "unlike", "nan", "inf", "baseline_nan", "baseline_inf", "zero_baseline",
    "relative_count", "without_cosine", "dot", "square", "baseline_square", "error_square",
)  # fmt: skip
ON_VALUES = ("cosine", "cosine_min", "mse", "max_absolute", "max_relative")


@dataclass
class DifferenceAccumulator:
    """Cosine, mean squared error, largest differences, NaN and infinite values.

    - `cosine` is that of all values of all samples as one vector; `cosine_min` that of the worst sample, None where a
      sample has none.
    - `max_relative` is |x - b| / |b| over values whose baseline b is not 0; `zero_baseline_count` counts those excluded
      although x is not 0.
    - Values that are NaN, or infinite with one sign, on both sides are equal and excluded. Where they are on one side
      only, the figures are None, and the reason has those of the remaining values.
    """

    samples: int = 0
    count: int = 0
    compared: int = 0
    unlike: int = 0
    nan: int = 0
    inf: int = 0
    baseline_nan: int = 0
    baseline_inf: int = 0
    zero_baseline: int = 0
    relative_count: int = 0
    dot: float = 0.0
    square: float = 0.0
    baseline_square: float = 0.0
    error_square: float = 0.0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    cosine_min: float | None = None
    without_cosine: int = 0
    no_cosine_because: str | None = None
    """Reason of the first sample without a cosine."""

    worst_sample: str | None = None
    """Of the largest absolute difference."""

    _worst: float = field(default=-1.0, repr=False)

    def update(self, values: npt.NDArray[Any], baseline: npt.NDArray[Any], sample: str = "") -> None:
        """Add one sample's output. Raises `OutputError` where shapes differ or the values are no real numbers."""
        values, baseline = np.asarray(values), np.asarray(baseline)
        if values.shape != baseline.shape:
            raise OutputError(f"the output is {values.shape}, the baseline's {baseline.shape}")
        if values.dtype.kind not in "fiub" or baseline.dtype.kind not in "fiub":
            raise OutputError(f"values of {values.dtype} and {baseline.dtype} are no real numbers")
        one = DifferenceAccumulator(samples=1)
        flat, other = values.reshape(-1), baseline.reshape(-1)
        for begin in range(0, flat.size, BLOCK):
            one._block(flat[begin : begin + BLOCK].astype(np.float64), other[begin : begin + BLOCK].astype(np.float64))
        own = _cosine(one.dot, one.square, one.baseline_square) if one.compared else Figure(None, "no values")
        one.cosine_min = own.value
        if own.value is None:
            one.without_cosine, one.no_cosine_because = 1, f"{sample}: {own.reason}" if sample else own.reason
        if one.compared:
            one._worst, one.worst_sample = one.max_absolute, sample
        self.merge(one)

    def _block(self, x: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> None:
        self.count += x.size
        self.nan += int(np.isnan(x).sum())
        self.inf += int(np.isinf(x).sum())
        self.baseline_nan += int(np.isnan(b).sum())
        self.baseline_inf += int(np.isinf(b).sum())
        finite = np.isfinite(x) & np.isfinite(b)
        equal = (x == b) | (np.isnan(x) & np.isnan(b))
        self.unlike += int((~finite & ~equal).sum())
        x, b = x[finite], b[finite]
        if not x.size:
            return
        self.compared += x.size
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(x - b)
            self.dot += float(x @ b)
            self.square += float(x @ x)
            self.baseline_square += float(b @ b)
            self.error_square += float(error @ error)
            self.max_absolute = max(self.max_absolute, float(error.max()))
            has_size = b != 0
            self.zero_baseline += int((~has_size & (x != 0)).sum())
            self.relative_count += int(has_size.sum())
            if has_size.any():
                self.max_relative = max(self.max_relative, float((error[has_size] / np.abs(b[has_size])).max()))

    def merge(self, other: DifferenceAccumulator) -> None:
        """Add the samples of another accumulator, after those of this one."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_absolute = max(self.max_absolute, other.max_absolute)
        self.max_relative = max(self.max_relative, other.max_relative)
        known = [value for value in (self.cosine_min, other.cosine_min) if value is not None]
        self.cosine_min = min(known, default=None)
        self.no_cosine_because = self.no_cosine_because or other.no_cosine_because
        if other._worst > self._worst:
            self._worst, self.worst_sample = other._worst, other.worst_sample

    def figures(self) -> Figures:
        """All metrics by name; counts are never None."""
        counts = {
            "nan_count": self.nan,
            "inf_count": self.inf,
            "baseline_nan_count": self.baseline_nan,
            "baseline_inf_count": self.baseline_inf,
            "zero_baseline_count": self.zero_baseline,
        }
        return {**self._on_values(), **{name: Figure(float(count)) for name, count in counts.items()}}

    def _on_values(self) -> Figures:
        if not self.count:
            return nothing(ON_VALUES, "there are no values")
        if not self.compared:
            return nothing(ON_VALUES, f"none of {self.count} values is finite on both sides")
        found = {
            "cosine": _cosine(self.dot, self.square, self.baseline_square),
            "cosine_min": self._cosine_min(),
            "mse": figure(self.error_square / self.compared),
            "max_absolute": figure(self.max_absolute),
            "max_relative": figure(self.max_relative)
            if self.relative_count
            else Figure(None, "all values of the baseline are 0"),
        }
        if not self.unlike:
            return found
        text = f"{self.unlike} of {self.count} values are NaN or infinite on one side only"
        return {
            name: Figure(None, f"{text}; of the others it is {one.value:.6g}" if one.value is not None else text)
            for name, one in found.items()
        }

    def _cosine_min(self) -> Figure:
        if not self.without_cosine:
            return Figure(self.cosine_min)
        text = f"{self.without_cosine} of {self.samples} samples have no cosine ({self.no_cosine_because})"
        return Figure(None, text if self.cosine_min is None else f"{text}; of the others it is {self.cosine_min:.6g}")


def _cosine(dot: float, square: float, other: float) -> Figure:
    if square == 0 and other == 0:
        return Figure(None, "all values are 0 on both sides, and a vector of zeros has no direction")
    if square == 0 or other == 0:
        whose = "the output" if square == 0 else "the baseline"
        return Figure(None, f"all values of {whose} are 0, and a vector of zeros has no direction")
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(np.float64(dot) / (np.sqrt(np.float64(square)) * np.sqrt(np.float64(other))))
    return figure(min(1.0, max(-1.0, value)) if np.isfinite(value) else value)
