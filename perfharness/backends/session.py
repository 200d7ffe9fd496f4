"""Sessions: the order of calls, their checks, the host's arrays, what is reported, errors in our terms."""

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
"""Parts of the frameworks' messages about missing memory, in lower case."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LayerTime:
    """Time of one layer in one inference, on the device where there is one, else on the host."""

    name: str
    milliseconds: float


class DeviceTimer(ABC):
    """Time on the device between two points in the session's stream, from the device's own events."""

    @abstractmethod
    def start(self) -> None:
        """Put the first point into the stream."""

    @abstractmethod
    def stop(self) -> None:
        """Put the second point into the stream."""

    @abstractmethod
    def milliseconds(self) -> float:
        """Time between the points; waits until both are reached."""


class Session:
    """A loaded model. Use as a context manager.

    The order of calls is: `allocate` (again for other shapes), `write_inputs`, then any number of rounds of `copy_in`,
    `execute`, `copy_out`, `synchronize`, then `read_outputs`. Everything that can be done once (buffers, bindings,
    compilation of this shape, capture of a CUDA graph) is done in `allocate`, so that a round does nothing but what a
    service would do for each batch.

    Sessions with the same options may run concurrently in threads, each in one thread from `allocate` on.

    The state and the checks of all sessions are here; subclasses do what differs between frameworks in `_allocate`,
    which puts the array of each input into `_host`, `_execute`, `_results`, `_free` and `_release`, and, where there is
    another memory than the host's, in `copy_in` and `copy_out`.
    """

    build_ms: float | None = None
    """What of `load` and `allocate` was the build of an engine, or a compilation, with the first call where frameworks
    compile in it; None: nothing was built."""

    no_layer_times = "this backend does not report the times of its layers"

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
        """The outputs of the last round on the host, as NumPy reads them; empty where there was none."""
        raise NotImplementedError

    def _free(self) -> None:
        """Free what `_allocate` made, if anything; nothing runs on it any more."""

    def _release(self) -> None:
        """Free the model; called once, after `_free`."""

    def allocate(self, shapes: Mapping[str, Shape]) -> None:
        """Make host (pinned, where there is a GPU) and device buffers for these input shapes, by input name.

        Raises `OutOfMemoryError` where they do not fit, `BackendError` where the model does not take the shapes.
        """
        if self._closed:
            raise BackendError("the session is closed; load the model again")
        whole = self._checked(shapes)
        self._reset()
        with translated("the model could not be prepared for these shapes"):
            self._allocate(whole)
        self._shapes = whole

    def write_inputs(self, arrays: Mapping[str, Array]) -> None:
        """Fill the host's arrays; shapes and dtypes are those of `allocate` and `inputs`."""
        self._check_names(arrays)
        for spec in self.inputs:
            array, shape = arrays[spec.name], self._shapes.get(spec.name)
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
        """Start the copy of the inputs from the host to the device; on the CPU nothing."""

    def execute(self) -> None:
        """Start one inference; it may return before the inference is done."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        try:
            self._execute()
        except Exception as error:
            raise translation(error, "the model could not be run") from error

    def copy_out(self) -> None:
        """Start the copy of the outputs from the device to the host; on the CPU nothing."""

    def synchronize(self) -> None:
        """Wait until all started work is done."""

    def run_round(self) -> None:
        """One round: what a service does for each batch."""
        self.copy_in()
        self.execute()
        self.copy_out()
        self.synchronize()

    def read_outputs(self) -> dict[str, Array]:
        """The outputs of the last round, copies that stay valid; call after `synchronize`."""
        values = self._results() if self._shapes else ()
        if len(values) != len(self.outputs):
            raise BackendError("there are no outputs; allocate and run a round before they are read")
        return {spec.name: np.array(value, order="C") for spec, value in zip(self.outputs, values, strict=True)}

    def close(self) -> None:
        """Free everything. May be called twice."""
        if not self._closed:
            self._closed = True
            self._reset()
            self._release()

    def device_timer(self) -> DeviceTimer | None:
        """A timer on the session's stream, or None where there is no device."""
        return None

    def device_memory_bytes(self) -> int | None:
        """Peak that the framework's allocator has reserved on the device since `allocate`; None: not reported."""
        return None

    def parameter_bytes(self) -> int | None:
        """Size of the model's parameters; None: not reported."""
        return None

    def settings(self) -> dict[str, str]:
        """Settings of this session that change its speed or numbers, by the framework's names."""
        return {}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Mean time of each layer over so many rounds, or why there are none, one sentence."""
        del rounds
        return self.no_layer_times

    @contextmanager
    def building(self) -> Iterator[None]:
        """Count the time inside as build."""
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
        with suppress(BackendError):  # after an error nothing runs, and everything can be freed
            self.synchronize()
        self._shapes, self._host = {}, {}
        self._free()

    def _checked(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all inputs. Raises `BackendError` where the model does not take them."""
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
        """Inputs in one line, e.g. `image float32 (?, 3, 224, 224)`."""
        return ", ".join(
            f"{spec.name} {spec.dtype} ({', '.join('?' if size is None else str(size) for size in spec.shape)})"
            for spec in self.inputs
        )


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
