"""Classification: top-1, top-k, accuracy per class, and which classes lost against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, lgamma, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.figure import Figure, Figures, SampleError, figure

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
    """Two-sided p-value of McNemar's test."""
    count, fewer = lost + gained, min(lost, gained)
    if lost == gained:
        return 1.0
    tail = fsum(
        exp(lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) - count * log(2)) for k in range(fewer + 1)
    )
    return min(1.0, 2 * tail)


def paired_difference(lost: int, gained: int, count: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / count, where `lost + gained` of `count` pairs changed."""
    whole, down, up = count + 2, lost + 0.5, gained + 0.5
    middle = (up - down) / whole
    half = Z_975 * sqrt((up + down) - (up - down) ** 2 / whole) / whole
    return max(-1.0, middle - half), min(1.0, middle + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple tests (Holm-Bonferroni)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


Ints = npt.NDArray[np.int64]
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class ClassChange:
    """One class against the baseline, on the same samples. Shares of 1; intervals of 95 %.

    Args:
        lost, gained: samples that only the baseline, or only the case, has right.
        p: of McNemar's test; `p_holm` for the number of classes.
    """

    name: str
    samples: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    baseline_accuracy: float
    difference: float
    difference_low: float
    difference_high: float
    lost: int
    gained: int
    p: float
    p_holm: float

    @property
    def by_chance(self) -> bool:
        """Whether the change is not significant."""
        return self.p_holm >= SIGNIFICANT


def label_ranks(scores: npt.NDArray[Any], labels: Ints) -> Ints:
    """How many classes come before the label's, per row; of equal scores the lower class is first.

    Args:
        scores: (samples, classes); a row with NaN has no order, and its rank is the number of classes.
        labels: (samples,).
    """
    own = np.take_along_axis(scores, labels[:, np.newaxis], axis=1)
    before = scores > own
    before |= (scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis])
    ranks = before.sum(axis=1).astype(np.int64)
    ranks[np.isnan(scores).any(axis=1)] = scores.shape[1]
    return np.asarray(ranks, dtype=np.int64)


class ClassAccumulator:
    """Counts by class.

    Args:
        top_k: the k of the second figure.
        names: of the classes, by number; numbers where there are none.
    """

    def __init__(self, top_k: int = 5, names: Sequence[str] = ()) -> None:
        self.top_k, self.names = top_k, tuple(names)
        self.samples = self.paired = self.unordered = 0
        self._counts: Ints | None = None  # rows: samples, top-1, top-k, lost, gained, pairs, baseline's top-1 of pairs

    def update(self, scores: npt.NDArray[Any], labels: npt.ArrayLike, baseline: npt.NDArray[Any] | None = None) -> None:
        """Take scores (samples, classes), or (classes,) of one sample, and the labels.

        Args:
            baseline: the baseline's scores of the same samples, of the same shape.

        Raises `SampleError` where shapes or labels do not fit.
        """
        rows, wanted = np.atleast_2d(np.asarray(scores)), np.atleast_1d(np.asarray(labels))
        if rows.ndim != 2 or wanted.shape != rows.shape[:1] or wanted.dtype.kind not in "iu":
            raise SampleError(
                f"scores of {np.shape(scores)} are not one row of classes for each of {wanted.size} labels"
            )
        numbers = wanted.astype(np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < rows.shape[1]):
            raise SampleError(f"label {numbers.max()} is none of the {rows.shape[1]} classes of the output")
        counts = self._table(rows.shape[1])
        ranks = label_ranks(rows, numbers)
        base = None
        if baseline is not None:
            other = np.atleast_2d(np.asarray(baseline))
            if other.shape != rows.shape:
                raise SampleError(f"scores are {rows.shape}, the baseline's {other.shape}")
            base = label_ranks(other, numbers) == 0
        right = ranks == 0
        self.samples += len(numbers)
        self.unordered += int((ranks == rows.shape[1]).sum())
        np.add.at(counts[0], numbers, 1)
        np.add.at(counts[1], numbers[right], 1)
        np.add.at(counts[2], numbers[ranks < self.top_k], 1)
        if base is not None:
            self.paired += len(numbers)
            np.add.at(counts[3], numbers[base & ~right], 1)
            np.add.at(counts[4], numbers[right & ~base], 1)
            np.add.at(counts[5], numbers, 1)
            np.add.at(counts[6], numbers[base], 1)

    def merge(self, other: ClassAccumulator) -> None:
        """Add the samples of another accumulator."""
        if other._counts is None:
            return
        counts = self._table(other._counts.shape[1])
        counts += other._counts
        self.samples += other.samples
        self.paired += other.paired
        self.unordered += other.unordered

    def figures(self) -> Figures:
        """`top1`, `top{k}`, `mean_class_accuracy`, `unordered_count`; paired with a baseline also the difference."""
        top = f"top{self.top_k}"
        if self._counts is None or not self.samples:
            return {
                name: Figure(None, "there are no labelled samples") for name in ("top1", top, "mean_class_accuracy")
            }
        counts = self._counts
        classes, seen = counts.shape[1], counts[0] > 0
        low, high = wilson(int(counts[1].sum()), self.samples)
        found = {
            "top1": figure(float(counts[1].sum()) / self.samples),
            "top1_low": figure(low),
            "top1_high": figure(high),
            "mean_class_accuracy": figure(float((counts[1][seen] / counts[0][seen]).mean())),
            "unordered_count": Figure(float(self.unordered)),
        }
        if self.top_k > 1:
            found[top] = (
                figure(float(counts[2].sum()) / self.samples)
                if self.top_k < classes
                else Figure(None, f"there are only {classes} classes")
            )
        if self.paired:
            lost, gained = int(counts[3].sum()), int(counts[4].sum())
            low, high = paired_difference(lost, gained, self.paired)
            found |= {
                "baseline_top1": figure(float(counts[6].sum()) / self.paired),
                "top1_difference": figure((gained - lost) / self.paired),
                "top1_difference_low": figure(low),
                "top1_difference_high": figure(high),
                "mcnemar_p": figure(mcnemar(lost, gained)),
            }
        return found

    def changes(self) -> list[ClassChange]:
        """Every class that has pairs, largest loss first."""
        if self._counts is None:
            return []
        numbers = np.flatnonzero(self._counts[5]).tolist()
        p_values = [mcnemar(int(self._counts[3, n]), int(self._counts[4, n])) for n in numbers]
        found = [self._change(n, p, q) for n, p, q in zip(numbers, p_values, holm(p_values), strict=True)]
        return sorted(found, key=lambda change: (change.difference, change.p, change.name))

    def lost(self) -> dict[str, float]:
        """Loss of each class, shares of 1; largest first."""
        return {change.name: -change.difference for change in self.changes() if change.difference < 0}

    def _change(self, number: int, p: float, p_holm: float) -> ClassChange:
        assert self._counts is not None
        samples, right, _, lost, gained, pairs, base = (int(value) for value in self._counts[:, number])
        low, high = wilson(right, samples)
        down, up = paired_difference(lost, gained, pairs)
        return ClassChange(
            self.name_of(number), samples, right / samples, low, high, base / pairs, (gained - lost) / pairs, down, up,
            lost, gained, p, p_holm,
        )  # fmt: skip

    def name_of(self, number: int) -> str:
        """Name of a class, or its number."""
        return self.names[number] if number < len(self.names) else str(number)

    def _table(self, classes: int) -> Ints:
        if self._counts is None:
            self._counts = np.zeros((7, classes), np.int64)
        if self._counts.shape[1] != classes:
            raise SampleError(f"the output has {classes} classes, and had {self._counts.shape[1]} before")
        return self._counts
