"""What every inference backend can be asked: load, describe, allocate once, run, synchronise, close.

A backend is one file with one class, and one line in `perfharness.backends.BACKENDS`. Frameworks are imported inside
its methods only: importing `perfharness.backends` loads none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec

Device = Literal["cpu", "cuda"]
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it: a file (or SavedModel folder), or `module:function`.

    The function is called as `function(backend=NAME, precision=PRECISION)` and returns what the backend takes (for
    PyTorch an `nn.Module`, for JAX a pair of function and parameters, ...; see docs/backends.md).
    """

    name: str
    path: Path | None = None
    factory: str | None = None


@dataclass(frozen=True)
class BackendOptions:
    """How a model is to be run.

    Args:
        mode: one of the backend's `modes`, e.g. `eager`, `compile`, `cudagraph`; `xla`; a provider's name.
        threads: of the host, for backends that compute there; None: the backend's own choice.
        extra: what only this backend knows, by name; unknown names are an error.
        cache_dir: for engines and timing caches; None: no cache.
    """

    device: Device = "cpu"
    precision: Precision = "fp32"
    mode: str = ""
    threads: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None


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


class Session(ABC):
    """A loaded model. Use as a context manager.

    The order of calls is: `allocate` (again for other shapes), `write_inputs`, then any number of rounds of `copy_in`,
    `execute`, `copy_out`, `synchronize`, then `read_outputs`. On the CPU `copy_in` and `copy_out` may do nothing.
    Everything that can be done once (buffers, bindings, compilation of this shape, capture of a CUDA graph) is done in
    `allocate`, so that a round does nothing but what a service would do for each batch.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    def allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make host (pinned, where there is a GPU) and device buffers for these input shapes, by input name.

        Raises `OutOfMemoryError` where they do not fit, `BackendError` where the model does not take the shapes.
        """

    @abstractmethod
    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the host buffers; shapes and dtypes are those of `allocate` and `inputs`."""

    @abstractmethod
    def copy_in(self) -> None:
        """Start the copy of the inputs from the host to the device."""

    @abstractmethod
    def execute(self) -> None:
        """Start one inference; it may return before the inference is done."""

    @abstractmethod
    def copy_out(self) -> None:
        """Start the copy of the outputs from the device to the host."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all that was started is done."""

    @abstractmethod
    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """The outputs of the last round, copies that stay valid; call after `synchronize`."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. May be called twice."""

    def device_timer(self) -> DeviceTimer | None:
        """A timer on the session's stream, or None where there is no device."""
        return None

    def device_memory_bytes(self) -> int | None:
        """Peak that the framework's allocator has reserved on the device since `allocate`; None: it does not tell."""
        return None

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Mean time of each layer over so many rounds, or why there are none, one sentence."""
        del rounds
        return "this backend does not tell the times of its layers"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Backend(ABC):
    """One inference framework.

    Args:
        name: as on the command line.
        modes: how it can run a model, the default first.
        precisions: what it can compute in, on some device.
        suffixes: of the model files that it takes.
        install: command that installs it.
    """

    name: str
    modes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    suffixes: tuple[str, ...]
    install: str

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the libraries in use, by name. Raises `BackendUnavailableError` where it is not installed."""

    @abstractmethod
    def problem(self, options: BackendOptions) -> str | None:
        """Why it cannot run here with these options (not installed, no GPU, no such mode or precision), or None."""

    @abstractmethod
    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load a model; whatever is built (an engine, say) is built here or in `allocate`, never in a round.

        Raises `BackendUnavailableError` where `problem` gives a reason, `BackendError` where it cannot be loaded.
        """

    def check(self, options: BackendOptions) -> None:
        """Raise `BackendUnavailableError` where the options cannot be run here."""
        from perfharness.errors import BackendUnavailableError

        if (problem := self.problem(options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")


def checked_arrays(session: Session, shapes: Mapping[str, tuple[int, ...]], arrays: Arrays) -> None:
    """Raise `BackendError` where arrays do not fit the allocated shapes and the dtypes of the inputs."""
    for spec in session.inputs:
        array = arrays.get(spec.name)
        if array is None:
            raise BackendError(
                f"input {spec.name!r} is missing; the model takes {[each.name for each in session.inputs]}"
            )
        if tuple(array.shape) != tuple(shapes[spec.name]) or np.dtype(array.dtype).name != spec.dtype:
            raise BackendError(
                f"input {spec.name!r} is {array.dtype} {tuple(array.shape)}, and was allocated as {spec.dtype} "
                f"{tuple(shapes[spec.name])}; write what was allocated"
            )
