"""An imported TensorRT 10 or 11, lean runtime or TensorRT-RTX, and its log messages.

Differences, from the bindings of 10.0.1, 10.16.1, 11.4.0, lean 11.4.0 and RTX 1.7.1, NVIDIA's "Migrating from TensorRT
10.x to 11.x" and the documentation of TensorRT-RTX:

- Context memory: `device_memory_size` in TensorRT 10, `device_memory_size_v2` since 10.1, and only that since 11.
- RTX builds without a GPU, for compute capability 8.0 and newer, and compiles for the actual GPU when a context first
  runs. CUDA graphs are a setting of its context; with the others, the stream is captured.
- The lean runtime has no builder or parser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfharness.backends.session import OUT_OF_MEMORY_SIGNS
from perfharness.errors import BackendError, OutOfMemoryError


class TensorRTLibrary:
    """An imported TensorRT; `name` is for messages."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.version = str(module.__version__)
        self._errors: list[str] = []  # logged since the last call, also by TensorRT's threads
        self.logger = _logger(module, self._errors)

    @property
    def is_rtx(self) -> bool:
        """Whether engines are built ahead of time for several kinds of GPU and compiled where they run."""
        return hasattr(self.module, "ComputeCapability")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def call(self, what: str, advice: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Result of a call that returns None or False on failure. Raises `BackendError`."""
        self._errors.clear()
        value = function(*arguments)
        if value is None or value is False:
            raise self.failure(what, advice)
        return value

    def failure(self, what: str, advice: str) -> BackendError:
        """Sentence about a failure: action, TensorRT's first message, next step."""
        errors = list(self._errors)
        if any(sign in message.lower() for message in errors for sign in OUT_OF_MEMORY_SIGNS):
            return OutOfMemoryError(f"{what}: not enough device memory for TensorRT ({errors[0]})")
        return BackendError(f"{what}: {errors[0] if errors else 'TensorRT gave no reason'}; {advice}")

    def start(self, kind: str) -> Any:
        """Create a `Builder`, which needs a GPU except for RTX, or a `Runtime`, which must outlive its engines."""
        self._errors.clear()
        try:
            return getattr(self.module, kind)(self.logger)
        except TypeError as error:  # from pybind11, for a factory that returned nullptr
            what = f"{self} could not start its {kind.lower()}"
            raise self.failure(what, "check that there is a GPU and a driver new enough for it") from error

    def gpu_problem(self, major: int, minor: int) -> str | None:
        """Reason why this library does not support GPUs of a compute capability, or None."""
        if not self.is_rtx:
            return None
        known = sorted(int(name[2:]) for name in self.module.ComputeCapability.__members__ if name.startswith("SM"))
        if major * 10 + minor in known or major * 10 + minor > known[-1]:
            return None
        listed = ", ".join(f"{each // 10}.{each % 10}" for each in known)
        return f"{self} does not support compute capability {major}.{minor}; it supports {listed}"

    def create_context(self, engine: Any, cuda_graph: bool) -> Any:
        """Create an execution context; `cuda_graph`: let RTX use its own CUDA graphs."""
        given: tuple[Any, ...] = ()
        if self.is_rtx:
            config = engine.create_runtime_config()
            if cuda_graph:
                config.cuda_graph_strategy = self.module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            given = (config,)
        advice = "check the free device memory"
        return self.call("no execution context could be created", advice, engine.create_execution_context, *given)


def layer_profiler(module: Any) -> tuple[Any, dict[str, float]]:
    """A profiler for a context, and its milliseconds by layer, in order of the first report."""
    times: dict[str, float] = {}

    class Profiler(module.IProfiler):  # type: ignore[misc]  # known only at run time
        def __init__(self) -> None:
            module.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name] = times.get(layer_name, 0.0) + ms

    return Profiler(), times


def _logger(module: Any, errors: list[str]) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]  # known only at run time
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            # RTX logs errors in an engine's header as information.
            is_error = severity in (module.ILogger.Severity.INTERNAL_ERROR, module.ILogger.Severity.ERROR)
            if is_error or msg.startswith("The engine "):
                errors.append(" ".join(msg.split())[:300].rstrip(". ;"))

    return Logger()
