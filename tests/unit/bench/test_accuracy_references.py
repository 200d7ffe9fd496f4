"""Metrics of 1,000 random cases against scikit-learn, torchmetrics, NumPy and Wilson's equation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from perfharness.bench.accuracy.metrics import ClassAccumulator, regression_figures, wilson
from perfharness.bench.accuracy.outputs import DifferenceAccumulator

pytestmark = pytest.mark.slow

CASES = 1000
NAMES = ("precision", "recall", "f1")
Array = npt.NDArray[Any]


def randoms() -> Iterator[tuple[int, np.random.Generator]]:
    return ((seed, np.random.default_rng(seed)) for seed in range(CASES))


def classifications() -> Iterator[tuple[Array, Array]]:
    """Scores and labels: 2 to 10 classes, of which the last may be no label; every third case has ties."""
    for seed, random in randoms():
        classes, samples = int(random.integers(2, 11)), int(random.integers(1, 60))
        scores = random.normal(size=(samples, classes)).astype(np.float32)
        labels = random.integers(0, random.integers(1, classes + 1), samples)
        scores[np.arange(samples), labels] += random.uniform(0, 2)
        yield np.round(scores) if seed % 3 == 0 else scores, labels


def accumulated(scores: Array, labels: Array, top_k: int) -> ClassAccumulator:
    """Three updates of one accumulator."""
    seen = ClassAccumulator(top_k)
    for part in np.array_split(np.arange(len(labels)), 3):
        if part.size:
            seen.update(scores[part], labels[part])
    return seen


def values_of(seen: Any) -> dict[str, float | None]:
    return {name: one.value for name, one in seen.figures().items()}


def test_classes_as_in_scikit_learn() -> None:
    """A row with NaN predicts no class: for scikit-learn a class after the last, of which no figure is asked for."""
    theirs = pytest.importorskip("sklearn.metrics")
    for seed, (scores, labels) in enumerate(classifications()):
        classes, top_k = scores.shape[1], 1 + seed % 5
        predicted = scores.argmax(axis=1)
        if seed % 5 == 0:
            scores[::4, 0], predicted[::4] = np.nan, classes
        seen = accumulated(scores, labels, top_k)
        found = values_of(seen)
        used = sorted({*labels.tolist(), *predicted.tolist()} - {classes})
        how: dict[str, Any] = {"labels": used, "zero_division": 0}
        for average in ("macro", "micro"):
            three = theirs.precision_recall_fscore_support(labels, predicted, average=average, **how)[:3]
            assert [found[f"{name}_{average}"] for name in NAMES] == pytest.approx(three)
        each = zip(*theirs.precision_recall_fscore_support(labels, predicted, average=None, **how), strict=True)
        assert {one.name: (one.precision or 0, one.accuracy or 0, one.f1, one.samples) for one in seen.classes()} == {
            str(number): pytest.approx(four) for number, four in zip(used, each, strict=True)
        }
        confusion = theirs.confusion_matrix(labels, predicted, labels=range(classes + 1))[:classes, :classes]
        assert dict(seen.confusion) == {pair: count for pair, count in np.ndenumerate(confusion) if count}
        assert found["top1"] == pytest.approx(theirs.accuracy_score(labels, predicted))
        mean = theirs.recall_score(labels, predicted, labels=np.unique(labels), average="macro", zero_division=0)
        assert found["mean_class_accuracy"] == pytest.approx(mean)
        if 1 < top_k < classes and classes > 2:
            # Of equal scores the lower class is first here, the higher in scikit-learn: it is given mirrored classes.
            ordered = predicted < classes
            among = (
                theirs.top_k_accuracy_score(
                    classes - 1 - labels[ordered],
                    scores[ordered, ::-1],
                    k=top_k,
                    labels=range(classes),
                    normalize=False,
                )
                if ordered.any()
                else 0
            )
            assert found[f"top{top_k}"] == pytest.approx(among / len(labels))


def test_classes_as_in_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    for seed, (scores, labels) in enumerate(classifications()):
        classes, top_k = scores.shape[1], min(2 + seed % 4, scores.shape[1] - 1)
        seen = accumulated(scores, labels, top_k)
        found = values_of(seen)
        given, truth = torch.from_numpy(scores), torch.from_numpy(labels)
        for average in ("macro", "micro"):
            for name, metric in (("precision", "precision"), ("recall", "recall"), ("f1", "f1_score")):
                value = getattr(theirs, f"multiclass_{metric}")(given, truth, classes, average=average)
                assert found[f"{name}_{average}"] == pytest.approx(float(value), abs=1e-6)
        confusion = theirs.multiclass_confusion_matrix(given, truth, classes).numpy()
        assert dict(seen.confusion) == {pair: count for pair, count in np.ndenumerate(confusion) if count}
        if classes == 2:
            second = {one.name: one for one in seen.classes()}.get("1")
            for name, metric in (("precision", "precision"), ("accuracy", "recall"), ("f1", "f1_score")):
                value = float(getattr(theirs, f"binary_{metric}")(given.argmax(1), truth))
                assert (getattr(second, name, None) or 0) == pytest.approx(value, abs=1e-6)
        elif seed % 3:  # without ties, whose order is left open there
            value = theirs.multiclass_accuracy(given, truth, classes, average="micro", top_k=top_k)
            assert top_k == 1 or found[f"top{top_k}"] == pytest.approx(float(value), abs=1e-6)


def test_regression_as_in_scikit_learn_and_torchmetrics() -> None:
    torch, ours = pytest.importorskip("torch"), ("mae", "rmse", "r2")
    sklearn, torchmetrics = (pytest.importorskip(name) for name in ("sklearn.metrics", "torchmetrics.functional"))
    for seed, random in randoms():
        truth = random.normal(random.normal(0, 10), 1, int(random.integers(2, 60)))
        values = truth + random.normal(0, random.uniform(0.1, 3), truth.size)
        if is_constant := seed % 50 == 0:
            truth[:] = truth[0]
        found = {name: one.value for name, one in regression_figures([*zip(values, truth, strict=True)]).items()}
        squares = sklearn.mean_squared_error(truth, values)
        first = [sklearn.mean_absolute_error(truth, values), np.sqrt(squares), sklearn.r2_score(truth, values)]
        given = torch.from_numpy(values), torch.from_numpy(truth)
        second = [
            float(torchmetrics.mean_absolute_error(*given)),
            float(torchmetrics.mean_squared_error(*given, squared=False)),
            float(torchmetrics.r2_score(*given)),
        ]
        for theirs in (first, second):  # of a constant truth there is no R2 here, in scikit-learn it is 0
            assert found == pytest.approx(
                dict(zip(ours, [*theirs[:2], None if is_constant else theirs[2]], strict=True))
            )


def test_differences_as_in_numpy() -> None:
    for _, random in randoms():
        x, b = random.normal(size=(2, int(random.integers(1, 6)), int(random.integers(1, 50)))).astype(np.float32)
        seen = DifferenceAccumulator()
        for values, baseline in zip(x, b, strict=True):
            seen.update(values, baseline)
        one, two = x.astype(np.float64), b.astype(np.float64)
        cosines = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
        found = values_of(seen)
        assert [found[name] for name in ("cosine", "cosine_min", "mse", "max_absolute")] == pytest.approx(
            [
                (one * two).sum() / np.linalg.norm(one) / np.linalg.norm(two),
                cosines.min(),
                np.square(one - two).mean(),
                np.abs(one - two).max(),
            ]
        )


def test_intervals_by_wilsons_equation() -> None:
    z = 1.959963984540054
    for _, random in randoms():
        count = int(random.integers(1, 2000))
        share = int(random.integers(0, count + 1)) / count
        half = z * np.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
        expected = np.clip((share + z * z / count / 2 + np.array([-half, half])) / (1 + z * z / count), 0, 1)
        assert wilson(round(share * count), count) == pytest.approx(tuple(expected), abs=1e-12)
