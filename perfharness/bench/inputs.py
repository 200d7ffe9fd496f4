"""Shapes and values of a case's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.arrays import read_arrays
from perfharness.backends.session import shape_text
from perfharness.bench.spec import BATCH, CaseSpec
from perfharness.errors import UsageError
from perfharness.model.bench import TensorSpec

Shapes = dict[str, tuple[int, ...]]


def input_shapes(specs: Sequence[TensorSpec], spec: CaseSpec) -> Shapes:
    """Shape of each input for the case's batch size. Raises `UsageError` for undetermined dimensions."""
    unknown = sorted(set(spec.inputs) - {one.name for one in specs})
    if unknown:
        names = ", ".join(one.name for one in specs)
        raise UsageError(f"the model has no input {unknown[0]!r}; it has: {names}")
    sizes = {**spec.dimensions, BATCH: spec.case.batch_size}
    shapes = {}
    for one in specs:
        given = spec.inputs.get(one.name)
        shapes[one.name] = _named(one, given, sizes) if given is not None else _of_model(one, spec.case.batch_size)
    is_named = any(BATCH in given for given in spec.inputs.values())
    if spec.inputs and not is_named and all(shape[:1] != (spec.case.batch_size,) for shape in shapes.values()):
        name, given = next(iter(spec.inputs.items()))
        raise UsageError(
            f"no input has batches of {spec.case.batch_size}; write the first dimension as {BATCH!r}: "
            f"{name}={'x'.join(map(str, (BATCH, *given[1:])))}"
        )
    return shapes


def _named(one: TensorSpec, given: tuple[int | str, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    open_names = sorted({part for part in given if isinstance(part, str) and part not in sizes})
    if open_names:
        raise UsageError(
            f"dimension {open_names[0]!r} of input {one.name!r} has no size; give a number, or `dimensions`"
        )
    shape = tuple(sizes[part] if isinstance(part, str) else part for part in given)
    fits = len(shape) == len(one.shape) and all(
        have in (None, want) for have, want in zip(one.shape, shape, strict=True)
    )
    if not fits:
        raise UsageError(f"input {one.name!r} is {shape_text(one)} in the model, so it cannot be {shape}")
    return shape


def _of_model(one: TensorSpec, batch: int) -> tuple[int, ...]:
    """Shape in the model: an open first dimension is the batch; other open dimensions must be given."""
    shape = (batch if size is None else size for size in one.shape[:1])
    rest = one.shape[1:]
    if None in rest:
        raise UsageError(
            f"input {one.name!r} is {shape_text(one)} in the model; give its other open dimensions, as in "
            f"--shape {one.name}={'x'.join([BATCH, *('?' if size is None else str(size) for size in rest)])}"
        )
    if one.shape and one.shape[0] not in (None, batch):
        raise UsageError(
            f"input {one.name!r} is {shape_text(one)} in the model, which supports only batches of {one.shape[0]}; "
            f"for a batch of {batch}, export it with that dimension open"
        )
    return (*shape, *(size for size in rest if size is not None))


def input_arrays(specs: Sequence[TensorSpec], shapes: Shapes, spec: CaseSpec) -> dict[str, npt.NDArray[Any]]:
    """Values of each input: from the file, repeated over the batch, else seeded.

    Floats are standard normal; integers and booleans are 0 or 1, which are valid indices and masks.
    """
    given = {} if spec.input_file is None else read_arrays(spec.input_file, UsageError)
    if "" in given:
        raise UsageError(f"{spec.input_file} is one array; give a .npz with arrays by input name")
    random = np.random.default_rng(spec.seed)
    found = {}
    for one in specs:
        shape, kind = shapes[one.name], np.dtype(one.dtype)
        if one.name in given:
            found[one.name] = _fitted(one.name, given[one.name], shape, kind)
        elif kind.kind == "f":
            found[one.name] = random.standard_normal(shape, dtype=np.float32).astype(kind)
        else:
            found[one.name] = random.integers(0, 2, shape).astype(kind)
    return found


def _fitted(name: str, array: npt.NDArray[Any], shape: tuple[int, ...], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if array.shape == shape:
        return np.array(array, dtype=kind, order="C")
    if array.shape == shape[1:]:
        array = array[np.newaxis]
    if not shape or array.shape[1:] != shape[1:] or not len(array):
        raise UsageError(f"input {name!r} of the file is {array.shape}; it must be {shape} or {shape[1:]}")
    return np.ascontiguousarray(np.resize(array, shape), dtype=kind)
