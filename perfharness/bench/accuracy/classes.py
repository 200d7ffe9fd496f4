"""Classification: top-1, top-k, accuracy per class, and which classes lost against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.figure import Figure, Figures, SampleError, figure, nothing

Ints = npt.NDArray[np.int64]
Z_975 = 1.959963984540054
SIGNIFICANT = 0.05


def wilson(successes: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion; count is at least 1."""
    from scipy.stats import binomtest  # takes half a second to import

    low, high = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    return float(low), float(high)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided p-value of McNemar's exact test."""
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + gained).pvalue) if lost != gained else 1.0


def paired_difference(lost: int, gained: int, count: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / count, where `lost + gained` of `count` pairs changed (Agresti, Min 2005)."""
    whole, down, up = count + 2, lost + 0.5, gained + 0.5
    middle = (up - down) / whole
    half = Z_975 * sqrt((up + down) - (up - down) ** 2 / whole) / whole
    return max(-1.0, middle - half), min(1.0, middle + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple tests (Holm-Bonferroni)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]))
    return [float(one) for one in adjusted]


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
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis]))
    has_nan = np.isnan(scores).any(axis=1)
    return np.asarray(np.where(has_nan, scores.shape[1], before.sum(axis=1)), dtype=np.int64)


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
        """Take scores (samples, classes) and the labels.

        Args:
            baseline: the baseline's scores of the same samples, of the same shape.

        Raises `SampleError` where shapes or labels do not fit.
        """
        wanted = np.asarray(labels, dtype=np.int64)
        if scores.ndim != 2 or wanted.shape != scores.shape[:1]:
            raise SampleError(f"scores of {scores.shape} are not one row of classes for each of {wanted.size} labels")
        classes = scores.shape[1]
        if not (wanted.min() >= 0 and wanted.max() < classes):
            raise SampleError(f"label {wanted.max()} is none of the {classes} classes of the output")
        if self._counts is None:
            self._counts = np.zeros((7, classes), np.int64)
        if self._counts.shape[1] != classes:
            raise SampleError(f"the output has {classes} classes, and had {self._counts.shape[1]} before")
        ranks = label_ranks(scores, wanted)
        right, every = ranks == 0, np.ones(len(wanted), bool)
        kinds = [every, right, ranks < self.top_k]
        if baseline is not None:
            base = label_ranks(baseline, wanted) == 0
            kinds += [base & ~right, right & ~base, every, base]
            self.paired += len(wanted)
        self.samples += len(wanted)
        self.unordered += int((ranks == classes).sum())
        for row, kind in zip(self._counts, kinds, strict=False):
            row += np.bincount(wanted[kind], minlength=classes)

    def figures(self) -> Figures:
        """`top1`, `top{k}`, `mean_class_accuracy`, `unordered_count`; paired with a baseline also the difference."""
        top = f"top{self.top_k}"
        if self._counts is None:
            return nothing(("top1", top, "mean_class_accuracy"), "there are no labelled samples")
        counts = self._counts
        classes, seen = counts.shape[1], counts[0] > 0
        _, right, among, lost, gained, _, base = (int(row.sum()) for row in counts)
        low, high = wilson(right, self.samples)
        found = {
            "top1": figure(right / self.samples),
            "top1_low": figure(low),
            "top1_high": figure(high),
            "mean_class_accuracy": figure(float((counts[1][seen] / counts[0][seen]).mean())),
            "unordered_count": Figure(float(self.unordered)),
        }
        if self.top_k > 1:
            few = Figure(None, f"there are only {classes} classes")
            found[top] = figure(among / self.samples) if self.top_k < classes else few
        if self.paired:
            low, high = paired_difference(lost, gained, self.paired)
            found |= {
                "baseline_top1": figure(base / self.paired),
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
        columns = {number: column for number, column in enumerate(self._counts.T.tolist()) if column[5]}
        p_values = [mcnemar(column[3], column[4]) for column in columns.values()]
        found = []
        for (number, column), p, p_holm in zip(columns.items(), p_values, holm(p_values), strict=True):
            samples, right, _, lost, gained, pairs, base = column
            name = self.names[number] if number < len(self.names) else str(number)
            found.append(
                ClassChange(
                    name, samples, right / samples, *wilson(right, samples), base / pairs, (gained - lost) / pairs,
                    *paired_difference(lost, gained, pairs), lost, gained, p, p_holm,
                )
            )  # fmt: skip
        return sorted(found, key=lambda change: (change.difference, change.p, change.name))
