"""Interface of all inference backends: load, describe, allocate once, run, synchronise, close.

A backend is one file with one class, and one line in `perfharness.backends.BACKENDS`. Frameworks are imported inside
its methods only: importing `perfharness.backends` loads none of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy.typing as npt

from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import Precision, TensorSpec

SAVED_MODEL = "savedmodel"
"""In place of a suffix: a TensorFlow SavedModel, which is a folder."""

Device = Literal["cpu", "cuda"]
Shape = tuple[int, ...]
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it: a file (or SavedModel folder), or `module:function`.

    The function is called as `function(backend=NAME, precision=PRECISION)` and returns what the backend takes, in a
    `FactoryModel` where that does not describe its inputs itself (docs/guides/backends.md). `models.model_source` makes
    one of text.

    Args:
        name: its name in tables.
        path: the file or folder; None for a factory.
        factory: `module:function` or `file.py:function`; None for a file.
        suffix: of the file, in lower case; `SAVED_MODEL` for a SavedModel folder; empty for a factory.
    """

    name: str
    path: Path | None = None
    factory: str | None = None
    suffix: str = ""


@dataclass(frozen=True)
class FactoryModel:
    """What a factory returns where a model does not describe itself (an `nn.Module`, a JAX function).

    Args:
        model: what the backend takes.
        inputs: name, shape (None: open) and dtype, in the order of the model's arguments. Dtypes are those on the
            host: a session that computes in fp16 or bf16 casts on the device, inside `execute`.
        outputs: names, in the order in which the model returns them; empty: `output_0`, `output_1`, ...
    """

    model: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackendOptions:
    """How to run a model.

    Args:
        mode: one of the backend's `modes`, e.g. `eager`, `compile`, `cudagraph`; `xla`; a provider's name.
        threads: of the host, for backends that compute there; None: the backend's own choice.
        extra: options of this backend only, by name; unknown names are an error.
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

    Sessions with the same options may run concurrently in threads, each in one thread from `allocate` on.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    build_ms: float | None = None
    """What of `load` and `allocate` was the build of an engine, or a compilation, with the first call where frameworks
    compile in it; None: nothing was built, or all of it was found in a cache."""

    from_cache: str | None = None
    """Which parts of the build came from a cache, where the framework reports it; None: nothing known."""

    @abstractmethod
    def allocate(self, shapes: Mapping[str, Shape]) -> None:
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
        """Wait until all started work is done."""

    def run_round(self) -> None:
        """One round: what a service does for each batch."""
        self.copy_in()
        self.execute()
        self.copy_out()
        self.synchronize()

    @abstractmethod
    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """The outputs of the last round, copies that stay valid; call after `synchronize`."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. May be called twice."""

    def device_timer(self) -> DeviceTimer | None:
        """A timer on the session's stream, or None where there is no device."""
        return None

    def stream_pointer(self) -> int | None:
        """The CUDA stream (`cudaStream_t`) in which all of a round is, this session's own.

        None where there is no device, or the framework has one stream for all sessions or does not report it.
        """
        return None

    def threads_problem(self) -> str | None:
        """Why rounds of such sessions in several threads would go one after the other, or None."""
        return None

    def device_memory_bytes(self) -> int | None:
        """Peak that the framework's allocator has reserved on the device since `allocate`; None: not reported."""
        return None

    def settings(self) -> dict[str, str]:
        """Settings of this session that change its speed or numbers, by the framework's names."""
        return {}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Mean time of each layer over so many rounds, or why there are none, one sentence."""
        del rounds
        return "this backend does not report the times of its layers"

    def compiled_programs(self) -> tuple[int, int]:
        """Number of programs from the framework's cache and of those compiled so far; zeros: not reported."""
        return 0, 0

    @contextmanager
    def building(self) -> Iterator[None]:
        """Count the time inside as build, unless everything was found in a cache."""
        found_before, made_before = self.compiled_programs()
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            taken_ms = (time.perf_counter_ns() - begin_ns) / 1e6
            found, made = self.compiled_programs()
            found, made = found - found_before, made - made_before
            if found:
                self.from_cache = f"{found} of {found + made} compiled programs came from a cache"
            if made or not found:
                self.build_ms = (self.build_ms or 0.0) + taken_ms

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Backend(ABC):
    """One inference framework.

    Args:
        name: as on the command line.
        modes: how it can run a model, the default first.
        precisions: that it supports on some device.
        suffixes: of the model files that it accepts, e.g. `.onnx`; `SAVED_MODEL` for such a folder.
        install: command that installs it.
        extra: its own options, each with the possible values (the default first), none: any.
    """

    name: str
    modes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    suffixes: tuple[str, ...]
    install: str
    extra: Mapping[str, tuple[str, ...]] = {}

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the libraries in use, by name. Raises `BackendUnavailableError` where it is not installed."""

    @abstractmethod
    def unsupported(self, options: BackendOptions) -> str | None:
        """Why it cannot run here with valid options (not installed, no GPU), or None; may raise `BackendError`."""

    @abstractmethod
    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """A session of a model that it takes, with options that it can run.

        Whatever is built (an engine, say) is built here or in `allocate`, never in a round. Raises `BackendError` where
        the model cannot be loaded.
        """

    def modes_on(self, device: Device) -> tuple[str, ...]:
        """The modes for a device, the default first; `problem` checks whether one runs here."""
        del device
        return self.modes

    def problem(self, options: BackendOptions) -> str | None:
        """Why it cannot run here with these options (not installed, no GPU, no such mode or precision), or None."""
        if options.mode and options.mode not in self.modes:
            return f"there is no mode {options.mode!r}; there are: {', '.join(self.modes)}"
        if options.precision not in self.precisions:
            return f"it does not compute in {options.precision}; it does in: {', '.join(self.precisions)}"
        for name, value in options.extra.items():
            if name not in self.extra:
                return f"there is no option {name!r}; there are: {', '.join(sorted(self.extra)) or 'none'}"
            if (values := self.extra[name]) and value not in values:
                return f"{name} cannot be {value!r}; it can be: {', '.join(values)}"
        if options.precision == "tf32" and options.device == "cpu":
            return "a CPU has no tf32"
        try:
            return self.unsupported(options)
        except BackendError as error:
            return str(error)

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """A session of a model.

        Raises `BackendUnavailableError` where `problem` gives a reason, `BackendError` where it cannot be loaded.
        """
        if (problem := self.problem(options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")
        self.check_model(model)
        return self.open(model, options)

    def check_model(self, model: ModelSource) -> None:
        """Raise `BackendError` where it does not take files of this kind. A factory is taken by every backend."""
        if model.factory is None and model.suffix not in self.suffixes:
            taken = ", ".join([*self.suffixes, "module:function"])
            raise BackendError(f"{self.name} does not take {model.path}; it takes {taken}")


def imported(module: str, install: str, title: str = "") -> Any:
    """A framework's module. Raises `BackendUnavailableError`; `title` is its name in that message."""
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = "is not installed" if is_missing else f"cannot be imported ({' '.join(str(error).split())[:300]})"
        raise BackendUnavailableError(f"{title or module} {why}: {install}") from error
