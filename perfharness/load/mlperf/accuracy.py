"""The answers of an accuracy test, scored: top-1 by labels, and functions of the user's, as in `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.classes import ClassAccumulator
from perfharness.bench.accuracy.figure import Figures, SampleError, withheld
from perfharness.bench.accuracy.functions import OwnMetric
from perfharness.bench.accuracy.samples import read_arrays
from perfharness.errors import UsageError
from perfharness.load.mlperf.logs import read_answers
from perfharness.model.mlperf import MlperfAccuracy, SutRecord

LABELS = "labels"
TOP_K = 5


def read_labels(path: Path) -> npt.NDArray[np.int64]:
    """The class of each sample. Raises `UsageError` where it cannot be read."""
    try:
        if path.suffix in (".npy", ".npz"):
            arrays = read_arrays(path)
            found: npt.NDArray[Any] = arrays[LABELS if LABELS in arrays else next(iter(arrays))]
        else:
            found = np.array([int(line) for line in path.read_text("utf-8").split()])
    except (OSError, ValueError, StopIteration, SampleError) as error:
        raise UsageError(f"--labels {path} cannot be read: {error}; one class a sample, as a whole number") from error
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UsageError(f"--labels {path} holds {found.dtype} {found.shape}; one class a sample, as a whole number")
    return found.astype(np.int64)


class Scoring:
    """What scores answers. Made before anything starts, for its arguments may be wrong.

    Args:
        metrics: functions, `module:function`.

    Raises `UsageError`.
    """

    def __init__(self, labels: Path | None, metrics: tuple[str, ...]) -> None:
        self._labels = None if labels is None else read_labels(labels)
        self._own = [OwnMetric(text) for text in metrics]

    @property
    def scores(self) -> bool:
        """Whether there is anything to score by."""
        return self._labels is not None or bool(self._own)

    def score(self, log: Path, sut: SutRecord) -> tuple[dict[str, MlperfAccuracy], int]:
        """The figures, and the number of answers in the log. Null where samples of the data set are missing, or failed.

        Raises `ResultError` where the log cannot be read.
        """
        classes = ClassAccumulator(TOP_K)
        answered, failed, problem = set[int](), 0, None
        for index, answer in read_answers(log, sut.output_dtype or "uint8", sut.output_shape or [-1]):
            if answer is None:
                failed += 1
                continue
            answered.add(index)
            reference: dict[str, npt.NDArray[np.generic]] = {}
            if self._labels is not None and problem is None:
                problem = self._count(classes, index, answer)
            if self._labels is not None and index < len(self._labels):
                reference["label"] = np.asarray(self._labels[index])
            for metric in self._own:
                metric.update({sut.output or "output": answer}, reference, str(index))
        figures: Figures = {}
        if self._labels is not None:
            figures |= classes.figures() if problem is None else withheld(classes.figures(), problem)
        for metric in self._own:
            figures |= metric.figures()
        if failed or len(answered) != sut.data_samples:
            why = f"{len(answered)} of {sut.data_samples} samples were answered, {failed} failed"
            figures = withheld(figures, why)
        found = {name: MlperfAccuracy(value=one.value, reason=one.reason) for name, one in figures.items()}
        return found, len(answered) + failed

    def _count(self, classes: ClassAccumulator, index: int, answer: npt.NDArray[Any]) -> str | None:
        """Count one answer; why it cannot be."""
        assert self._labels is not None
        if index >= len(self._labels):
            return f"there are {len(self._labels)} labels, and sample {index} was answered"
        try:
            classes.update(answer.reshape(1, -1), self._labels[index : index + 1])
        except SampleError as error:
            return str(error)
        return None
