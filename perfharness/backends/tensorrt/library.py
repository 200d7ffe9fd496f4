"""An imported TensorRT 10, 11, lean runtime or TensorRT-RTX, and its log messages.

What differs, from the bindings of 10.0.1, 10.16.1, 11.4.0, lean 11.4.0 and RTX 1.7.1, NVIDIA's "Migrating from TensorRT
10.x to 11.x" and the documentation of TensorRT-RTX:

- Memory of a context. `device_memory_size` in TensorRT 10, `device_memory_size_v2` from 10.1 on, alone since 11.
- RTX builds without a GPU, for compute capability 8.0 and later, and compiles for the one at hand when a context runs
  first. CUDA graphs are a setting of its context; with the others we capture the stream.
- The lean runtime has neither builder nor parser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfharness.backends.session import OUT_OF_MEMORY_SIGNS
from perfharness.errors import BackendError, OutOfMemoryError


class TensorRTLibrary:
    """An imported TensorRT.

    Args:
        module: `tensorrt` or `tensorrt_rtx`.
        name: for messages.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.version = str(module.__version__)
        self._errors: list[str] = []  # logged since the last call, also from threads of TensorRT
        self.logger = _logger(module, self._errors)

    @property
    def is_rtx(self) -> bool:
        """Whether engines are built ahead of time for several kinds of GPU and compiled where they run."""
        return hasattr(self.module, "ComputeCapability")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def call(self, what: str, advice: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return value of a call that answers with None or False where it fails. Raises `BackendError`."""
        self._errors.clear()
        value = function(*arguments)
        if value is None or value is False:
            raise self.failure(what, advice)
        return value

    def failure(self, what: str, advice: str) -> BackendError:
        """One sentence on a failure: the action, TensorRT's first message, the next step."""
        errors = list(self._errors)
        if any(sign in message.lower() for message in errors for sign in OUT_OF_MEMORY_SIGNS):
            return OutOfMemoryError(f"{what}: TensorRT found no room on the device ({errors[0]})")
        return BackendError(f"{what}: {errors[0] if errors else 'TensorRT did not say why'}; {advice}")

    def start(self, kind: str) -> Any:
        """A `Builder`, for which all but RTX need a GPU, or a `Runtime`, which must outlive the engines it loads."""
        self._errors.clear()
        try:
            return getattr(self.module, kind)(self.logger)
        except TypeError as error:  # pybind11's error for a factory that returned nullptr
            what = f"{self} could not start its {kind.lower()}"
            raise self.failure(what, "see that a GPU and a driver new enough for it are there") from error

    def gpu_problem(self, major: int, minor: int) -> str | None:
        """Why this library does not run on a GPU of that compute capability, or None."""
        if not self.is_rtx:
            return None
        known = sorted(int(name[2:]) for name in self.module.ComputeCapability.__members__ if name.startswith("SM"))
        if major * 10 + minor in known or major * 10 + minor > known[-1]:
            return None
        listed = ", ".join(f"{each // 10}.{each % 10}" for each in known)
        return f"{self} does not run on compute capability {major}.{minor}; it does on {listed}"

    def create_context(self, engine: Any, cuda_graph: bool) -> Any:
        """An execution context; `cuda_graph`: let RTX use its own CUDA graphs."""
        given: tuple[Any, ...] = ()
        if self.is_rtx:
            config = engine.create_runtime_config()
            if cuda_graph:
                config.cuda_graph_strategy = self.module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            given = (config,)
        advice = "is there room on the device?"
        return self.call("no execution context could be made", advice, engine.create_execution_context, *given)


def layer_profiler(module: Any) -> tuple[Any, dict[str, float]]:
    """A profiler for a context, and the milliseconds by layer that it adds up, in the order of the first report."""
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
            # Smaller is more severe; RTX logs errors in an engine's header as information.
            is_error = severity in (module.ILogger.Severity.INTERNAL_ERROR, module.ILogger.Severity.ERROR)
            if is_error or msg.startswith("The engine "):
                errors.append(" ".join(msg.split())[:300].rstrip(". ;"))

    return Logger()
