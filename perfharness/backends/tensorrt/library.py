"""All differences between TensorRT 10, 11, its lean runtime and TensorRT-RTX, and their log messages.

What differs, from the bindings of 10.0.1, 10.16.1, 11.4.0, lean 11.4.0 and RTX 1.7.1, NVIDIA's "Migrating from TensorRT
10.x to 11.x" and the documentation of TensorRT-RTX:

- Memory of a context. `device_memory_size` in TensorRT 10, `device_memory_size_v2` from 10.1 on, alone since 11.
- RTX builds without a GPU, for compute capability 8.0 and later, and compiles for the one at hand when a context runs
  first. CUDA graphs are a setting of its context; with the others we capture the stream.
- The lean runtime has neither builder nor parser.
"""

from __future__ import annotations

import threading
from typing import Any

from perfharness.backends.session import OUT_OF_MEMORY_SIGNS
from perfharness.errors import BackendError, OutOfMemoryError


class Messages:
    """Errors that TensorRT logged since the last `clear`; it logs from threads of its own."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._lock = threading.Lock()

    def add(self, message: str) -> None:
        """Keep an error."""
        with self._lock:
            self._errors.append(" ".join(message.split())[:300].rstrip(". ;"))

    def clear(self) -> None:
        """Remove earlier errors before a call."""
        with self._lock:
            self._errors.clear()

    def failure(self, what: str, advice: str) -> BackendError:
        """One sentence on a failure: the action, TensorRT's first message, the next step."""
        with self._lock:
            errors = list(self._errors)
        if any(sign in message.lower() for message in errors for sign in OUT_OF_MEMORY_SIGNS):
            return OutOfMemoryError(f"{what}: TensorRT found no room on the device ({errors[0]})")
        return BackendError(f"{what}: {errors[0] if errors else 'TensorRT did not say why'}; {advice}")


class TensorRTLibrary:
    """An imported TensorRT.

    Args:
        module: `tensorrt` or `tensorrt_rtx`.
        name: for messages.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.version = str(module.__version__)
        self.messages = Messages()
        self.logger = _logger(module, self.messages)

    @property
    def is_rtx(self) -> bool:
        """Whether engines are built ahead of time for several kinds of GPU and compiled where they run."""
        return hasattr(self.module, "ComputeCapability")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def start(self, kind: str) -> Any:
        """A `Builder`, for which all but RTX need a GPU, or a `Runtime`, which must outlive the engines it loads."""
        self.messages.clear()
        try:
            return getattr(self.module, kind)(self.logger)
        except TypeError as error:  # pybind11's error for a factory that returned nullptr
            what = f"{self} could not start its {kind.lower()}"
            raise self.messages.failure(what, "see that a GPU and a driver new enough for it are there") from error

    def gpu_problem(self, major: int, minor: int) -> str | None:
        """Why this library does not run on a GPU of that compute capability, or None."""
        if not self.is_rtx:
            return None
        known = sorted(int(name[2:]) for name in self.module.ComputeCapability.__members__ if name.startswith("SM"))
        if major * 10 + minor in known or major * 10 + minor > known[-1]:
            return None
        listed = ", ".join(f"{each // 10}.{each % 10}" for each in known)
        return f"{self} does not run on compute capability {major}.{minor}; it does on {listed}"

    def load(self, runtime: Any, blob: bytes, name: str) -> Any:
        """An engine from its bytes. Raises `BackendError` with the library's message."""
        self.messages.clear()
        engine = runtime.deserialize_cuda_engine(blob)
        if engine is None:
            advice = f"build it again with {self} on this machine, from its ONNX file"
            raise self.messages.failure(f"{name} cannot be loaded by {self}", advice)
        return engine

    def create_context(self, engine: Any, cuda_graph: bool) -> Any:
        """An execution context; `cuda_graph`: let RTX use its own CUDA graphs."""
        self.messages.clear()
        if not self.is_rtx:
            context = engine.create_execution_context()
        else:
            config = engine.create_runtime_config()
            if cuda_graph:
                config.cuda_graph_strategy = self.module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            context = engine.create_execution_context(config)
        if context is None:
            raise self.messages.failure("no execution context could be made", "is there room on the device?")
        return context


class LayerRecorder:
    """Times of layers as TensorRT reports them, added up by name, in the order of the first report."""

    def __init__(self, module: Any) -> None:
        times: dict[str, float] = {}

        class Profiler(module.IProfiler):  # type: ignore[misc]  # known only at run time
            def __init__(self) -> None:
                module.IProfiler.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times[layer_name] = times.get(layer_name, 0.0) + ms

        self.milliseconds = times
        self.given = Profiler()


def _logger(module: Any, messages: Messages) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]  # known only at run time
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            # Smaller is more severe; RTX logs errors in an engine's header as information.
            is_error = severity in (module.ILogger.Severity.INTERNAL_ERROR, module.ILogger.Severity.ERROR)
            if is_error or msg.startswith("The engine "):
                messages.add(msg)

    return Logger()
