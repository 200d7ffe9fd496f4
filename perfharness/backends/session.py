"""Sessions: order of calls, checks, host arrays, reports, and translated errors."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from traceback import clear_frames
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.models import Shape
from perfharness.errors import BackendError, OutOfMemoryError
from perfharness.model.bench import TensorSpec

OUT_OF_MEMORY_SIGNS = (
    *("resource_exhausted", "out of memory", "outofmemory", "oom when", "failed to allocate", "bad_alloc"),
    *("can't allocate memory", "alloc_failed", "not enough memory", "available memory of"),
    *("insufficient memory", "insufficient gpu memory", "requested amount"),
)
"""Parts of frameworks' out-of-memory messages, in lower case."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LayerTime:
    """Time of one layer per inference, on the device if there is one, else on the host."""

    name: str
    milliseconds: float


class DeviceTimer(ABC):
    """Device time between two points in the session's stream, from the device's events."""

    @abstractmethod
    def start(self) -> None:
        """Insert the first point into the stream."""

    @abstractmethod
    def stop(self) -> None:
        """Insert the second point into the stream."""

    @abstractmethod
    def milliseconds(self) -> float:
        """Time between the points; waits until both are reached."""


class Session:
    """A loaded model. Use as a context manager.

    Order of calls: `allocate` (again for other shapes), `write_inputs`, any number of rounds of `copy_in`, `execute`,
    `copy_out`, `synchronize`, then `read_outputs`. One-time work (buffers, bindings, compilation for this shape,
    capture of a CUDA graph) is done in `allocate`, so that a round does only what a service would do per batch.

    Sessions with the same options may run concurrently in threads, each in one thread from `allocate` on.

    State and checks of all sessions are here. Subclasses implement `_allocate`, which puts the array of each input into
    `_host`, `_execute`, `_results`, `_free`, `_release`, and `copy_in` and `copy_out` if there is device memory.
    """

    build_ms: float | None = None
    """Part of `load` and `allocate` spent on building an engine or compiling, including the first call if a framework
    compiles in it; None if nothing was built."""

    no_layer_times = "this backend does not report layer times"

    def __init__(self, inputs: Iterable[TensorSpec] = (), outputs: Iterable[TensorSpec] = ()) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._shapes: dict[str, Shape] = {}
        self._host: dict[str, Array] = {}
        self._closed = False

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        """Prepare everything for these shapes; `_free` is called before, and after a failure."""
        raise NotImplementedError

    def _execute(self) -> None:
        """Start one inference."""
        raise NotImplementedError

    def _results(self) -> Sequence[Any]:
        """Outputs of the last round on the host, readable by NumPy; empty without a round."""
        raise NotImplementedError

    def _free(self) -> None:
        """Free the allocations of `_allocate`, if any, which are no longer in use."""

    def _release(self) -> None:
        """Free the model; called once, after `_free`."""

    def allocate(self, shapes: Mapping[str, Shape]) -> None:
        """Allocate host (with a GPU: pinned) and device buffers for these input shapes, by input name.

        Raises `OutOfMemoryError` if they do not fit, `BackendError` if the model does not support the shapes.
        """
        if self._closed:
            raise BackendError("the session is closed; load the model again")
        whole = self._checked(shapes)
        self._reset()
        with translated("the model could not be prepared for these shapes"):
            self._allocate(whole)
        self._shapes = whole

    def write_inputs(self, arrays: Mapping[str, Array]) -> None:
        """Fill the host arrays; shapes and dtypes must match `allocate` and `inputs`."""
        self._check_names(arrays)
        for spec in self.inputs:
            array, shape = arrays[spec.name], self._shapes.get(spec.name)
            if shape is None:
                raise BackendError(f"input {spec.name!r} has no buffer; call allocate before writing inputs")
            if array.shape != shape or array.dtype.name != spec.dtype:
                raise BackendError(
                    f"input {spec.name!r} is {array.dtype} {array.shape}, but was allocated as {spec.dtype} {shape}; "
                    "write arrays as allocated"
                )
        self.synchronize()
        for spec in self.inputs:
            np.copyto(self._host[spec.name], arrays[spec.name])

    def copy_in(self) -> None:
        """Start copying the inputs from host to device; nothing on the CPU."""

    def execute(self) -> None:
        """Start one inference; may return before it is done."""
        if not self._shapes:
            raise BackendError("nothing is allocated; call allocate before executing")
        try:
            self._execute()
        except Exception as error:
            raise translation(error, "the model could not be run") from error

    def copy_out(self) -> None:
        """Start copying the outputs from device to host; nothing on the CPU."""

    def synchronize(self) -> None:
        """Wait for all started work."""

    def run_round(self) -> None:
        """Run one round: a service's work per batch."""
        self.copy_in()
        self.execute()
        self.copy_out()
        self.synchronize()

    def read_outputs(self) -> dict[str, Array]:
        """Copies of the last round's outputs, which stay valid; call after `synchronize`."""
        values = self._results() if self._shapes else ()
        if len(values) != len(self.outputs):
            raise BackendError("there are no outputs; allocate and run a round before reading them")
        return {spec.name: np.array(value, order="C") for spec, value in zip(self.outputs, values, strict=True)}

    def close(self) -> None:
        """Free everything. May be called twice."""
        if not self._closed:
            self._closed = True
            self._reset()
            self._release()

    def device_timer(self) -> DeviceTimer | None:
        """A timer on the session's stream, or None without a device."""
        return None

    def device_memory_bytes(self) -> int | None:
        """Peak memory reserved on the device by the framework's allocator since `allocate`; None if not reported."""
        return None

    def parameter_bytes(self) -> int | None:
        """Size of the model's parameters; None if not reported."""
        return None

    def settings(self) -> dict[str, str]:
        """Settings of this session that affect speed or numbers, with the framework's names."""
        return {}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Mean time of each layer over this many rounds, or a sentence why there are none."""
        del rounds
        return self.no_layer_times

    @contextmanager
    def building(self) -> Iterator[None]:
        """Count the time inside as build time."""
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.build_ms = (self.build_ms or 0.0) + (time.perf_counter_ns() - begin_ns) / 1e6

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _reset(self) -> None:
        with suppress(BackendError):  # after an error nothing is running, so everything can be freed
            self.synchronize()
        self._shapes, self._host = {}, {}
        self._free()

    def _checked(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Shapes of all inputs. Raises `BackendError` if the model does not support them."""
        self._check_names(shapes)
        for spec in self.inputs:
            shape = shapes[spec.name]
            if len(shape) != len(spec.shape) or not all(
                size > 0 and wanted in (None, size) for size, wanted in zip(shape, spec.shape, strict=True)
            ):
                raise BackendError(f"input {spec.name!r} cannot be {tuple(shape)}; the model takes {self._described()}")
        return {spec.name: tuple(shapes[spec.name]) for spec in self.inputs}

    def _check_names(self, given: Mapping[str, object]) -> None:
        wanted = {spec.name for spec in self.inputs}
        for problem, names in (("has no input", set(given) - wanted), ("needs the input", wanted - set(given))):
            if names:
                raise BackendError(f"the model {problem} {min(names)!r}; it takes {self._described()}")

    def _described(self) -> str:
        """Inputs on one line, such as `image float32 (?, 3, 224, 224)`."""
        return ", ".join(f"{spec.name} {spec.dtype} {shape_text(spec)}" for spec in self.inputs)


def shape_text(spec: TensorSpec) -> str:
    """The shape as `(?, 3, 224, 224)`."""
    return "(" + ", ".join("?" if size is None else str(size) for size in spec.shape) + ")"


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable while the block runs."""
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
    """Convert a framework's exceptions to `BackendError`s of one line."""
    try:
        yield
    except Exception as error:
        raise translation(error, what) from error


def translation(error: Exception, what: str) -> BackendError:
    """Convert a framework's exception; out of memory is recognised by its text."""
    if isinstance(error, BackendError):
        return error
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, MemoryError) or any(sign in text.lower() for sign in OUT_OF_MEMORY_SIGNS):
        clear_frames(error.__traceback__)  # frees the failed call's memory, so that a smaller one may succeed
        return OutOfMemoryError(f"{what}: {text[:300]}")
    return BackendError(f"{what}: {text[:500]}")
