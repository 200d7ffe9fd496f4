"""Accuracy figures: classes, regression, and user metrics. Figures that cannot be computed are None with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.data import SampleError, user_function

Ints = npt.NDArray[np.int64]
Arrays = Mapping[str, npt.NDArray[np.generic]]


class OutputError(SampleError):
    """A model's output cannot be compared; another model's may be."""


class Figure(NamedTuple):
    """One metric: `value` is None if it cannot be computed, with the `reason`."""

    value: float | None
    reason: str | None = None


Figures = dict[str, Figure]


def figure(value: float) -> Figure:
    """Figure for a number; None with a reason if it is not finite."""
    return Figure(value) if isfinite(value) else Figure(None, "the sums exceed the range of float64")


def nothing(names: Iterable[str], reason: str) -> Figures:
    """Figures without values, for a common reason."""
    return dict.fromkeys(names, Figure(None, reason))


def withheld(figures: Mapping[str, Figure], why: str) -> Figures:
    """Remove values that cover only part of the data; they are moved to the reasons."""
    return {
        name: Figure(None, why if one.value is None else f"{why}; {one.value:.6g} over the others")
        for name, one in figures.items()
    }


def wilson(successes: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion; count is at least 1."""
    from scipy.stats import binomtest  # takes half a second to import

    low, high = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    return float(low), float(high)


def label_ranks(scores: npt.NDArray[Any], labels: Ints) -> Ints:
    """Number of classes before the label's, per row of scores; of equal scores, lower classes come first.

    Rows with NaN have no order and get the number of classes.
    """
    own = np.take_along_axis(scores, labels[:, np.newaxis], axis=1)
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis]))
    has_nan = np.isnan(scores).any(axis=1)
    return np.asarray(np.where(has_nan, scores.shape[1], before.sum(axis=1)), dtype=np.int64)


@dataclass(frozen=True)
class ClassScore:
    """One class: shares of 1 and a 95 % interval; None without samples, predictions or a baseline."""

    name: str
    samples: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    precision: float | None
    f1: float | None
    baseline_accuracy: float | None
    difference: float | None


class ClassAccumulator:
    """Samples by class; classes without a name are shown as numbers."""

    def __init__(self, top_k: int = 5, names: Sequence[str] = ()) -> None:
        self.top_k, self.names = top_k, tuple(names)
        self._classes = 0
        self._rows: list[Ints] = []
        """Of each sample: label, predicted class (-1 for NaN), rank of the label, whether the baseline is right."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(rows.shape[1] for rows in self._rows)

    @property
    def confusion(self) -> Counter[tuple[int, int]]:
        """Samples by label and predicted class; rows with NaN predict none."""
        return Counter((label, given) for rows in self._rows for label, given in rows[:2].T.tolist() if given >= 0)

    def update(self, scores: npt.NDArray[Any], labels: npt.ArrayLike, baseline: npt.NDArray[Any] | None = None) -> None:
        """Add scores (samples, classes) with labels, and the baseline's scores of the same samples.

        Raises `SampleError` if shapes or labels do not match.
        """
        wanted = np.asarray(labels, dtype=np.int64)
        if scores.ndim != 2 or wanted.shape != scores.shape[:1]:
            raise SampleError(f"scores of {scores.shape} are not one row of classes for each of {wanted.size} labels")
        classes = scores.shape[1]
        if not (wanted.min() >= 0 and wanted.max() < classes):
            raise SampleError(f"label {wanted.max()} is not one of the {classes} classes of the output")
        if self._rows and classes != self._classes:
            raise SampleError(f"the output has {classes} classes, but had {self._classes} before")
        ranks = label_ranks(scores, wanted)
        predicted = np.where(ranks < classes, scores.argmax(axis=1), -1)
        base = np.full(len(wanted), -1) if baseline is None else label_ranks(baseline, wanted) == 0
        self._classes = classes
        self._rows.append(np.stack([wanted, predicted, ranks, base]))

    def figures(self) -> Figures:
        """Top-1, top-k, precision, recall and F1 over all classes; with a baseline also the top-1 difference.

        Macro figures are means over classes that are a label or prediction of any sample; the precision of a class that
        is never predicted is 0.
        """
        top = f"top{self.top_k}"
        if not self._rows:
            return nothing(("top1", top, "mean_class_accuracy"), "there are no labelled samples")
        wanted, given, hits, paired_hits = self._by_class()
        _, _, ranks, base = np.hstack(self._rows)
        samples, right, paired, seen = self.samples, int(hits.sum()), int((base >= 0).sum()), wanted > 0
        low, high = wilson(right, samples)
        found = {
            "top1": figure(right / samples),
            "top1_low": figure(low),
            "top1_high": figure(high),
            "mean_class_accuracy": figure(float((hits[seen] / wanted[seen]).mean())),
            "unordered_count": Figure(float((ranks == self._classes).sum())),
        }
        if self.top_k > 1:
            few = Figure(None, f"there are only {self._classes} classes")
            found[top] = figure(float((ranks < self.top_k).mean())) if self.top_k < self._classes else few
        used = seen | (given > 0)
        for kind, (h, g, w) in {
            "macro": (hits[used], given[used], wanted[used]),
            "micro": (hits.sum(keepdims=True), given.sum(keepdims=True), wanted.sum(keepdims=True)),
        }.items():
            shares = {"precision": h / np.maximum(g, 1), "recall": h / np.maximum(w, 1), "f1": 2 * h / (g + w)}
            found |= {f"{name}_{kind}": figure(float(values.mean())) for name, values in shares.items()}
        if paired:
            found["baseline_top1"] = figure(int(paired_hits.sum()) / paired)
            found["top1_difference"] = figure((right - int(paired_hits.sum())) / paired)
        return found

    def classes(self) -> list[ClassScore]:
        """Every class that is a label or a prediction, largest loss against the baseline first."""
        if not self._rows:
            return []
        is_paired = any((rows[3] >= 0).any() for rows in self._rows)
        found = []
        for number, (samples, given, right, base) in enumerate(self._by_class().T.tolist()):
            if not samples and not given:
                continue
            low, high = wilson(right, samples) if samples else (None, None)
            found.append(
                ClassScore(
                    name=self.names[number] if number < len(self.names) else str(number),
                    samples=samples,
                    accuracy=right / samples if samples else None,
                    accuracy_low=low,
                    accuracy_high=high,
                    precision=right / given if given else None,
                    f1=2 * right / (given + samples),
                    baseline_accuracy=base / samples if samples and is_paired else None,
                    difference=(right - base) / samples if samples and is_paired else None,
                )
            )
        return sorted(found, key=lambda one: (one.difference or 0.0, one.name))

    def lost(self) -> dict[str, float]:
        """Loss of accuracy by class against the baseline, largest first, for classes with a loss."""
        return {
            one.name: -one.difference for one in self.classes() if one.difference is not None and one.difference < 0
        }

    def _by_class(self) -> Ints:
        """Of each class: samples, predictions, right ones, and those of the baseline."""
        labels, predicted, ranks, base = np.hstack(self._rows)
        each = (labels, predicted[predicted >= 0], labels[ranks == 0], labels[base == 1])
        return np.stack([np.bincount(one, minlength=self._classes) for one in each])


def regression_figures(pairs: Sequence[tuple[float, float]]) -> Figures:
    """`mae`, `rmse` and `r2` of the value and the truth of each sample; `r2` is None if the truth is constant."""
    if not pairs:
        return nothing(("mae", "rmse", "r2"), "there are no samples with a truth")
    values, truth = np.array(pairs).T
    error, spread = values - truth, truth - truth.mean()
    constant = Figure(None, "all values of the truth are equal")
    return {
        "mae": figure(float(np.abs(error).mean())),
        "rmse": figure(float(np.sqrt(error @ error / len(pairs)))),
        "r2": figure(float(1 - error @ error / (spread @ spread))) if np.ptp(truth) else constant,
    }


class OwnMetric:
    """A user metric: the mean of a function's results per sample, which are numbers or numbers by name.

    An exception becomes the reason for a missing value; other metrics continue. Raises `UsageError` if there is no such
    function.
    """

    def __init__(self, text: str) -> None:
        self._function: Callable[..., Any] = user_function(text)
        self.name = text.rpartition(":")[2]
        self._samples = 0
        self._reason: str | None = None
        self._values: dict[str, list[float]] = {}

    def update(self, outputs: Arrays, reference: Arrays, sample: str) -> None:
        """Pass a sample's outputs, and those of the baseline with `truth`, `label` and `value` if known."""
        self._samples += 1
        if self._reason is not None:
            return
        try:
            value = self._function(outputs, reference, sample)
            named = value if isinstance(value, Mapping) else {self.name: value}
            numbers = {str(name): float("nan") if one is None else float(one) for name, one in named.items()}
        except Exception as error:
            self._reason = f"it failed for {sample}: {type(error).__name__}: {error}"
            return
        for name, number in numbers.items():
            self._values.setdefault(name, []).append(number)

    def figures(self) -> Figures:
        """Figures by name; None if a sample has no number."""
        if self._reason is not None or not self._values:
            return {self.name: Figure(None, self._reason or "it received no samples")}
        return {name: self._mean(values) for name, values in self._values.items()}

    def _mean(self, values: list[float]) -> Figure:
        known = [value for value in values if isfinite(value)]
        if len(known) == self._samples:
            return figure(sum(known) / len(known))
        text = f"it returned no number for {self._samples - len(known)} of {self._samples} samples"
        return Figure(None, f"{text}; the mean of the others is {sum(known) / len(known):.6g}" if known else text)
