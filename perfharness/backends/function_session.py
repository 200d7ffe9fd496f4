"""A session over a framework in which a model is a function from arrays to arrays, compiled for one set of shapes.

TensorFlow, JAX and Keras on any of its backends differ in how that function is compiled, and in how arrays are
copied; the rest is here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import Arrays, FactoryModel, ModelSource, Session, checked_arrays, checked_shapes
from perfharness.errors import BackendError, OutOfMemoryError
from perfharness.model.bench import Precision, TensorSpec

ALIGNMENT_BYTES = 64
"""XLA and TensorFlow read host arrays in place if their address is a multiple of this; they copy others first."""

OUT_OF_MEMORY_SIGNS = ("resource_exhausted", "out of memory", "oom when", "failed to allocate", "bad_alloc")

HALF_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
"""Precision -> the dtype that weights and activations have in it."""


class FunctionSession(Session):
    """A session whose subclasses compile a function and move arrays.

    `copy_in` passes the host's arrays to the framework in each round, as a service does with each batch; on the CPU the
    framework may read them in place.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._closed = False
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._host: list[npt.NDArray[Any]] = []
        self._on_device: list[Any] = []
        self._values: list[Any] = []
        self._fetched = False

    compiles = True
    """Whether `_compile` does work that later calls reuse."""

    @abstractmethod
    def _compile(self, arrays: list[npt.NDArray[Any]]) -> None:
        """Make the function for inputs of these shapes, so that no later call compiles anything."""

    @abstractmethod
    def _put(self, arrays: list[npt.NDArray[Any]]) -> list[Any]:
        """Start the copy of host arrays to the device."""

    @abstractmethod
    def _call(self, inputs: list[Any]) -> list[Any]:
        """Start one inference."""

    @abstractmethod
    def _fetch(self, outputs: list[Any]) -> list[Any]:
        """Start the copy of outputs to the host; returns arrays, or what `_wait` converts to arrays."""

    @abstractmethod
    def _wait(self, values: list[Any]) -> list[Any]:
        """Wait for outputs, on the device or being copied to the host."""

    @abstractmethod
    def _release(self) -> None:
        """Release the model and the compiled function."""

    def allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make the host's arrays and compile for these shapes."""
        if self._closed:
            raise BackendError("the session is closed; load the model again")
        self._forget()
        whole = checked_shapes(self, shapes)
        arrays = [aligned_zeros(whole[spec.name], spec.dtype) for spec in self.inputs]
        with self.building() if self.compiles else nullcontext():
            with_errors(lambda: self._compile(arrays), "the model could not be compiled for these shapes")
        self._host = arrays
        self._shapes = whole
        self._on_device = with_errors(lambda: self._put(arrays), "the inputs could not be copied")

    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the host's arrays."""
        checked_arrays(self, self._shapes, arrays)
        self._finish()  # an inference that still runs may be reading them
        for spec, host in zip(self.inputs, self._host, strict=True):
            np.copyto(host, arrays[spec.name])

    def copy_in(self) -> None:
        """Pass the host's arrays to the framework."""
        self._on_device = self._put(self._host)

    def execute(self) -> None:
        """Start one inference."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        try:
            self._values, self._fetched = self._call(self._on_device), False
        except Exception as error:
            raise translated(error, "the model could not be run") from error

    def copy_out(self) -> None:
        """Start the copy of the outputs to the host."""
        self._values, self._fetched = self._fetch(self._values), True

    def synchronize(self) -> None:
        """Wait for the outputs, on the host where `copy_out` was called."""
        try:
            self._finish()
        except Exception as error:
            raise translated(error, "the model could not be run") from error

    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the outputs."""
        if not self._values:
            raise BackendError("there are no outputs; allocate and execute before they are read")
        if not self._fetched:
            self.copy_out()
        self.synchronize()
        return {spec.name: np.array(value) for spec, value in zip(self.outputs, self._values, strict=True)}

    def close(self) -> None:
        """Free everything."""
        if not self._closed:
            self._finish()
        self._closed = True
        self._forget()
        self._release()

    def _finish(self) -> None:
        if self._values:
            self._values = self._wait(self._values)

    def _forget(self) -> None:
        self._shapes, self._host, self._on_device, self._values, self._fetched = {}, [], [], [], False


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """An array aligned to `ALIGNMENT_BYTES`. Raises `OutOfMemoryError`."""
    kind = np.dtype(dtype)
    size_bytes = prod(shape) * kind.itemsize
    try:
        raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    except MemoryError as error:
        raise OutOfMemoryError(f"no room for an input of {size_bytes} bytes in the host's memory") from error
    begin = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[begin : begin + size_bytes].view(kind).reshape(shape)


def described_model(made: Any, model: ModelSource, backend: str, what: str) -> FactoryModel:
    """The factory's return value, which must be a `FactoryModel`. Raises `BackendError`."""
    if isinstance(made, FactoryModel) and made.inputs:
        return made
    raise BackendError(
        f"{model.factory} returned a {type(made).__name__} for {backend}; it must return a FactoryModel with {what}, "
        "and the names, shapes and dtypes of its inputs"
    )


def named_outputs(value: Any, names: Sequence[str]) -> tuple[tuple[str, ...], list[Any]]:
    """Names and values of what a model returned: one value, a sequence, or values by name.

    `names`: those given, or empty. Raises `BackendError` where their number differs from that of the values.
    """
    if isinstance(value, Mapping):
        if names and set(names) != set(value):
            raise BackendError(f"the model returns {', '.join(map(str, value))}, not {', '.join(names)}")
        order = tuple(names) or tuple(str(name) for name in value)
        return order, [value[name] for name in order]
    values = list(value) if isinstance(value, list | tuple) else [value]
    if names and len(names) != len(values):
        raise BackendError(f"the model returns {len(values)} outputs, and {len(names)} are named: {', '.join(names)}")
    return tuple(names) or tuple(f"output_{index}" for index in range(len(values))), values


def own_precision_problem(name: str, framework: str, elements: Mapping[str, int], wanted: Precision) -> str | None:
    """Why a model is not computed in the requested precision, by the number of weights of each dtype.

    For frameworks that compute in the dtypes of the weights. None where it is, or where no weights are visible.
    """
    kinds: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    known = {kinds[dtype]: count for dtype, count in elements.items() if dtype in kinds and count}
    if not known:
        return None
    own = max(known.items(), key=lambda each: each[1])[0]
    if own == wanted or (own == "fp32" and wanted == "tf32"):
        return None
    return (
        f"{name} is a model in {own}, and {framework} computes in a model's own precision; ask for {own}, or give a "
        f"model in {wanted}"
    )


def with_errors(work: Callable[[], Any], what: str) -> Any:
    """The value of `work`; what a framework raises becomes a `BackendError` of one line."""
    try:
        return work()
    except BackendError:
        raise
    except Exception as error:
        raise translated(error, what) from error


def translated(error: Exception, what: str) -> BackendError:
    """The framework's exception as ours; out of memory is recognised by its text only."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError) or any(sign in text.lower() for sign in OUT_OF_MEMORY_SIGNS):
        return OutOfMemoryError(f"{what}: {text[:300]}")
    return BackendError(f"{what}: {text[:500]}")
