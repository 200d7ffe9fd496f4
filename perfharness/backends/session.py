"""What the sessions of all frameworks share: the order of calls, the host's arrays, errors in our terms, precision."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import prod
from traceback import clear_frames
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import Arrays, FactoryModel, ModelSource, Session, Shape
from perfharness.backends.models import call_factory
from perfharness.errors import BackendError, OutOfMemoryError
from perfharness.model.bench import Precision, TensorSpec

ALIGNMENT_BYTES = 64
"""XLA and TensorFlow read host arrays in place if their address is a multiple of this; they copy others first."""

OUT_OF_MEMORY_SIGNS = (
    *("resource_exhausted", "out of memory", "outofmemory", "oom when", "failed to allocate", "bad_alloc"),
    *("can't allocate memory", "alloc_failed", "not enough memory", "available memory of"),
    *("insufficient memory", "insufficient gpu memory", "requested amount"),
)
"""Parts of the frameworks' messages about missing memory, in lower case."""

HALF_DTYPES: dict[Precision, str] = {"fp16": "float16", "bf16": "bfloat16"}
"""Precision -> the dtype that weights and activations have in it."""

Array = npt.NDArray[Any]


class HostSession(Session):
    """A session with arrays on the host that are filled and read; subclasses do what differs between frameworks.

    In `_allocate` they put the array of each input into `_host`. On the CPU nothing has to be copied.
    """

    def __init__(self, inputs: Iterable[TensorSpec] = (), outputs: Iterable[TensorSpec] = ()) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._shapes: dict[str, Shape] = {}
        self._host: dict[str, Array] = {}
        self._closed = False

    @abstractmethod
    def _allocate(self, shapes: dict[str, Shape]) -> None:
        """Prepare everything for these shapes; `_free` is called before, and after a failure."""

    @abstractmethod
    def _execute(self) -> None:
        """Start one inference."""

    @abstractmethod
    def _results(self) -> Sequence[Any]:
        """The outputs of the last round on the host, as NumPy reads them; empty where there was none."""

    @abstractmethod
    def _free(self) -> None:
        """Free what `_allocate` made, if anything; nothing runs on it any more."""

    @abstractmethod
    def _release(self) -> None:
        """Free the model; called once, after `_free`."""

    def allocate(self, shapes: Mapping[str, Shape]) -> None:
        """Check the shapes, free what was allocated before, allocate."""
        if self._closed:
            raise BackendError("the session is closed; load the model again")
        whole = self._checked(shapes)
        self._reset()
        with translated("the model could not be prepared for these shapes"):
            self._allocate(whole)
        self._shapes = whole

    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the host's arrays, once no inference reads them any more."""
        self._check_names(arrays)
        for spec in self.inputs:
            array, shape = arrays.get(spec.name), self._shapes.get(spec.name)
            if array is None:
                raise BackendError(f"input {spec.name!r} is missing; the model takes {self._described()}")
            if shape is None:
                raise BackendError(f"input {spec.name!r} has no buffer; allocate before inputs are written")
            if array.shape != shape or array.dtype.name != spec.dtype:
                raise BackendError(
                    f"input {spec.name!r} is {array.dtype} {array.shape}, and was allocated as {spec.dtype} {shape}; "
                    "write what was allocated"
                )
        self.synchronize()
        for spec in self.inputs:
            np.copyto(self._host[spec.name], arrays[spec.name])

    def copy_in(self) -> None:
        """Nothing: the model reads the host's arrays."""

    def execute(self) -> None:
        """Start one inference."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        try:
            self._execute()
        except Exception as error:
            raise translation(error, "the model could not be run") from error

    def copy_out(self) -> None:
        """Nothing: the model writes the host's arrays."""

    def synchronize(self) -> None:
        """Nothing: `execute` waits."""

    def read_outputs(self) -> dict[str, Array]:
        """Copies, in the order of `outputs`."""
        values = self._results() if self._shapes else ()
        if len(values) != len(self.outputs):
            raise BackendError("there are no outputs; allocate and run a round before they are read")
        return {spec.name: np.array(value, order="C") for spec, value in zip(self.outputs, values, strict=True)}

    def close(self) -> None:
        """Free everything."""
        if not self._closed:
            self._closed = True
            self._reset()
            self._release()

    def _reset(self) -> None:
        with suppress(BackendError):  # after an error nothing runs, and everything can be freed
            self.synchronize()
        self._shapes, self._host = {}, {}
        self._free()

    def _checked(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all inputs. Raises `BackendError` where the model does not take them."""
        self._check_names(shapes)
        for spec in self.inputs:
            shape = shapes.get(spec.name)
            if shape is None:
                raise BackendError(f"input {spec.name!r} has no shape; the model takes {self._described()}")
            if len(shape) != len(spec.shape) or not all(
                size > 0 and wanted in (None, size) for size, wanted in zip(shape, spec.shape, strict=True)
            ):
                raise BackendError(f"input {spec.name!r} cannot be {tuple(shape)}; the model takes {self._described()}")
        return {spec.name: tuple(shapes[spec.name]) for spec in self.inputs}

    def _check_names(self, given: Mapping[str, object]) -> None:
        if others := sorted(set(given) - {spec.name for spec in self.inputs}):
            raise BackendError(f"the model has no input {others[0]!r}; it takes {self._described()}")

    def _described(self) -> str:
        """Inputs in one line, e.g. `image float32 (?, 3, 224, 224)`."""
        return ", ".join(
            f"{spec.name} {spec.dtype} ({', '.join('?' if size is None else str(size) for size in spec.shape)})"
            for spec in self.inputs
        )


class FunctionSession(HostSession):
    """A session over a framework in which a model is a function of arrays, compiled for one set of shapes.

    `copy_in` passes the host's arrays to the framework in each round, as a service does with each batch; on the CPU the
    framework may read them in place.
    """

    compiles = True
    """Whether `_compile` does work that later calls reuse."""

    def __init__(self, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> None:
        super().__init__(inputs, outputs)
        self._on_device: list[Any] = []
        self._values: list[Any] = []
        self._fetched = False

    @abstractmethod
    def _compile(self, arrays: list[Array]) -> None:
        """Make the function for inputs of these shapes, so that no later call compiles anything."""

    @abstractmethod
    def _put(self, arrays: Iterable[Array]) -> list[Any]:
        """Start the copy of host arrays to the device."""

    @abstractmethod
    def _call(self, inputs: list[Any]) -> list[Any]:
        """Start one inference."""

    def _fetch(self, outputs: list[Any]) -> list[Any]:
        """Start the copy of outputs to the host; returns arrays, or what `_wait` converts to arrays."""
        return [output.numpy() for output in outputs]

    def _wait(self, values: list[Any]) -> list[Any]:
        """Wait for outputs: on the host where they were fetched, else on the device."""
        return values

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        arrays = {spec.name: aligned_zeros(shapes[spec.name], spec.dtype) for spec in self.inputs}
        with self.building() if self.compiles else nullcontext():
            self._compile(list(arrays.values()))
        self._host = arrays
        self._on_device = self._put(arrays.values())

    def copy_in(self) -> None:
        """Pass the host's arrays to the framework."""
        self._on_device = self._put(self._host.values())

    def _execute(self) -> None:
        self._values, self._fetched = self._call(self._on_device), False

    def copy_out(self) -> None:
        """Start the copy of the outputs to the host."""
        self._values, self._fetched = self._fetch(self._values), True

    def synchronize(self) -> None:
        """Wait for the outputs, on the host where `copy_out` was called."""
        try:
            if self._values:
                self._values = self._wait(self._values)
        except Exception as error:
            raise translation(error, "the model could not be run") from error

    def _results(self) -> Sequence[Any]:
        return self._values

    def _free(self) -> None:
        self._on_device, self._values = [], []


def aligned_zeros(shape: Shape, dtype: str) -> Array:
    """An array aligned to `ALIGNMENT_BYTES`."""
    kind = np.dtype(dtype)
    size_bytes = prod(shape) * kind.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[begin : begin + size_bytes].view(kind).reshape(shape)


def described_model(model: ModelSource, backend: str, precision: Precision, what: str) -> FactoryModel:
    """What the model's function returned, which must be a `FactoryModel` of `what`. Raises `BackendError`."""
    made = call_factory(model, backend, precision)
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
        order = tuple(names) or tuple(value)
        return tuple(map(str, order)), [value[name] for name in order]
    values = list(value) if isinstance(value, list | tuple) else [value]
    if names and len(names) != len(values):
        raise BackendError(f"the model returns {len(values)} outputs, and {len(names)} are named: {', '.join(names)}")
    return tuple(names) or tuple(f"output_{index}" for index in range(len(values))), values


def with_size(shape: Iterable[int | None], size: int) -> Shape:
    """A shape whose open dimensions are all of one size."""
    return tuple(size if each is None else each for each in shape)


def specs_of(names: Iterable[str], small: Iterable[Any], large: Iterable[Any]) -> tuple[TensorSpec, ...]:
    """Specs of outputs, seen with two sizes of the inputs' open dimensions: dimensions that differ are open too."""
    return tuple(
        TensorSpec(
            name=name,
            shape=tuple(size if size == other else None for size, other in zip(one.shape, two.shape, strict=True)),
            dtype=host_dtype(one.dtype),
        )
        for name, one, two in zip(names, small, large, strict=True)
    )


def host_dtype(dtype: Any) -> str:
    """NumPy's name of a framework's dtype; bfloat16, which NumPy does not have, becomes float32."""
    name = str(dtype).removeprefix("torch.")
    return "float32" if name == "bfloat16" else name


def precision_of_most(elements: Mapping[str, int]) -> Precision | None:
    """Precision of most of a model's weights, from the number of elements of each dtype; None: none that are known."""
    kinds: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    known = [(count, kinds[dtype]) for dtype, count in elements.items() if dtype in kinds and count]
    return max(known, key=lambda each: each[0])[1] if known else None


def check_own_precision(
    name: str, framework: str, own: Precision | None, wanted: Precision, others: Iterable[Precision] = ("tf32",)
) -> None:
    """Raise `BackendError` where a framework that computes in a model's own precision would compute in another.

    Args:
        own: the model's; None: unknown, or it has no floating-point numbers.
        others: in which it can compute a model in fp32 as well.
    """
    possible = {own, *(others if own == "fp32" else ())}
    if own is not None and wanted not in possible:
        raise BackendError(
            f"{name} is a model in {own}, and {framework} computes in a model's own precision; ask for "
            f"{' or '.join(sorted(map(str, possible)))}, or give a model in {wanted}"
        )


def variables(*names: str) -> dict[str, str]:
    """Those of the environment variables that are set, for `Session.settings`."""
    return {name: os.environ[name] for name in names if name in os.environ}


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable with this value inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def translated(what: str) -> Iterator[None]:
    """What a framework raises inside as a `BackendError` of one line."""
    try:
        yield
    except Exception as error:
        raise translation(error, what) from error


def translation(error: Exception, what: str) -> BackendError:
    """The framework's exception as ours; out of memory is recognised by its text only."""
    if isinstance(error, BackendError):
        return error
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, MemoryError) or any(sign in text.lower() for sign in OUT_OF_MEMORY_SIGNS):
        clear_frames(error.__traceback__)  # free the memory of the failed call, so that a smaller one may succeed
        return OutOfMemoryError(f"{what}: {text[:300]}")
    return BackendError(f"{what}: {text[:500]}")
