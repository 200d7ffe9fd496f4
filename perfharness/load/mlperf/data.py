"""The samples of a test: random ones, an .npz, or what a function returns; and those that LoadGen holds in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.data import read_arrays, user_function
from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.spec import CaseSpec
from perfharness.errors import UsageError
from perfharness.load.mlperf.settings import RANDOM, MlperfSettings
from perfharness.model.bench import TensorSpec

RANDOM_SAMPLES = 64
MOST_IN_MEMORY = 1024
"""Samples that LoadGen draws from in a performance test, where nothing else is given."""

SEED_STEP = 1_000_003

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class DataSet:
    """All samples.

    Args:
        sample: the n-th, by input, without the batch dimension.
    """

    count: int
    sample: Callable[[int], Mapping[str, Array]]


def sample_shapes(inputs: Sequence[TensorSpec], spec: CaseSpec) -> Shapes:
    """The shape of one sample, by input, of a model whose inputs all begin with the batch. Raises `UsageError`."""
    size = spec.case.batch_size
    shapes = input_shapes(inputs, spec)
    for name, shape in shapes.items():
        if shape[:1] != (size,):
            raise UsageError(
                f"input {name!r} is {shape} for a batch of {size}: its first dimension is not the batch, and LoadGen's "
                "samples are put together along that; give the shape with --shape"
            )
    return {name: shape[1:] for name, shape in shapes.items()}


def open_data(settings: MlperfSettings, inputs: Sequence[TensorSpec], shapes: Shapes, spec: CaseSpec) -> DataSet:
    """The data set that the settings name. Raises `UsageError` where it does not fit the model."""
    if settings.dataset == RANDOM:
        return _random(settings.samples or RANDOM_SAMPLES, inputs, shapes, spec)
    path = Path(settings.dataset)
    found = read_arrays(path) if path.suffix == ".npz" else user_function(settings.dataset)()
    whole = _of_arrays(found, shapes) if isinstance(found, Mapping) else _of_sequence(found, settings.dataset)
    if not whole.count:
        raise UsageError(f"{settings.dataset} has no sample")
    if settings.samples is not None and settings.samples > whole.count:
        raise UsageError(f"--samples {settings.samples}: {settings.dataset} has {whole.count}")
    return DataSet(settings.samples or whole.count, whole.sample)


def _random(count: int, inputs: Sequence[TensorSpec], shapes: Shapes, spec: CaseSpec) -> DataSet:
    of_one = {name: (1, *shape) for name, shape in shapes.items()}

    def sample(index: int) -> Arrays:
        seeded = spec.model_copy(update={"seed": spec.seed * SEED_STEP + index})
        return {name: array[0] for name, array in input_arrays(inputs, of_one, seeded).items()}

    return DataSet(count, sample)


def _of_arrays(found: Mapping[str, Any], shapes: Shapes) -> DataSet:
    missing = sorted(set(shapes) - set(found))
    if missing:
        raise UsageError(f"the data has no array {missing[0]!r}; it has: {', '.join(sorted(found))}")
    arrays = {name: np.asarray(found[name]) for name in shapes}
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise UsageError(f"the arrays of the data have different numbers of samples: {counts}")
    return DataSet(next(iter(counts.values())), lambda index: {name: array[index] for name, array in arrays.items()})


def _of_sequence(found: Any, name: str) -> DataSet:
    if not hasattr(found, "__len__") or not hasattr(found, "__getitem__"):
        raise UsageError(
            f"{name} returned {type(found).__name__}; it must return arrays of samples by input, or a sequence of "
            "samples, each a mapping of arrays by input"
        )
    return DataSet(len(found), found.__getitem__)


class LoadedSamples:
    """The samples in memory, as LoadGen loads and unloads them.

    Args:
        inputs: of the model.
        shapes: of one sample.
    """

    def __init__(self, data: DataSet, inputs: Sequence[TensorSpec], shapes: Shapes) -> None:
        self._data = data
        self._kinds = {one.name: np.dtype(one.dtype) for one in inputs}
        self._shapes = shapes
        self._rows: dict[int, int] = {}
        self._arrays: Arrays = {}

    def load(self, indices: Sequence[int]) -> None:
        """Hold these samples, and no others. Raises `UsageError` where one does not fit the model."""
        self._rows = {index: row for row, index in enumerate(indices)}
        self._arrays = {
            name: np.empty((len(indices), *shape), self._kinds[name]) for name, shape in self._shapes.items()
        }
        for row, index in enumerate(indices):
            sample = self._data.sample(index)
            for name, array in self._arrays.items():
                value = np.asarray(sample[name]) if name in sample else None
                if value is None or value.shape != array.shape[1:]:
                    has = "missing" if value is None else f"of shape {value.shape}"
                    raise UsageError(f"sample {index}: input {name!r} is {has}, and the model takes {array.shape[1:]}")
                array[row] = value

    def unload(self) -> None:
        """Hold none."""
        self._rows, self._arrays = {}, {}

    def batch(self, indices: Sequence[int], size: int) -> Arrays:
        """The inputs of these samples; the last one is repeated up to the size."""
        if size == 1:
            row = self._rows[indices[0]]
            return {name: array[row : row + 1] for name, array in self._arrays.items()}
        rows = [self._rows[index] for index in indices]
        rows += rows[-1:] * (size - len(rows))
        return {name: array[rows] for name, array in self._arrays.items()}
