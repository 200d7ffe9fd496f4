"""The one place that knows how TensorRT 10, TensorRT 11 and TensorRT-RTX differ, and the messages that they log.

What differs, and where that is from (the bindings of 10.0.1, 10.16.1, 11.4.0 and RTX 1.7.1 were looked into; the rest
is told in NVIDIA's "Migrating from TensorRT 10.x to 11.x" and in the documentation of TensorRT-RTX):

- Precision. TensorRT 10 takes a precision by builder flag (FP16, BF16, INT8), or a strongly typed network where that is
  asked for. TensorRT 11 and RTX have no such flags: a network is always strongly typed, and computes in the types that
  stand in the ONNX file.
- Memory of a context. `device_memory_size` in TensorRT 10, `device_memory_size_v2` from 10.1 on, alone since 11.
- Timing cache. A file of what the builder timed; RTX times nothing when it builds (its calls warn that they do nothing
  since 1.2).
- RTX builds without a GPU, for the compute capabilities that are named (none: 8.0 and later), and compiles for the one
  at hand when a context runs first; what it compiled is kept in a runtime cache. CUDA graphs are a setting of its
  context; with the others we capture the stream.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError

FLAG_OF_PRECISION = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8"}
"""Builder flags of weakly typed networks."""

OUT_OF_MEMORY = ("out of memory", "outofmemory", "insufficient memory", "insufficient gpu memory", "requested amount")
"""Words of TensorRT's messages where there is no room."""


@dataclass
class Messages:
    """What TensorRT logged since the last `clear`; it logs from threads of its own."""

    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, message: str) -> None:
        """Keep an error."""
        with self.lock:
            self.errors.append(" ".join(message.split()))

    def clear(self) -> None:
        """Forget what was before the call that comes now."""
        with self.lock:
            self.errors.clear()

    def failure(self, what: str, advice: str) -> BackendError:
        """What went wrong as one sentence: what was tried, what TensorRT said first, what to do."""
        with self.lock:
            said = list(self.errors)
        if any(sign in message.lower() for message in said for sign in OUT_OF_MEMORY):
            return OutOfMemoryError(f"{what}: TensorRT found no room on the device ({_short(said[0])})")
        reason = _short(said[0]) if said else "TensorRT did not say why"
        return BackendError(f"{what}: {reason}; {advice}")


class TensorRTLibrary:
    """An imported TensorRT.

    Args:
        module: `tensorrt` or `tensorrt_rtx`.
        name: as people write it.
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

    @property
    def has_precision_flags(self) -> bool:
        """Whether a network may be weakly typed, its precision a flag of the builder."""
        return hasattr(self.module.BuilderFlag, "FP16")

    def create_builder(self) -> Any:
        """What makes networks and engines; the one that is not RTX needs a GPU for it."""
        return self._started("Builder")

    def create_runtime(self) -> Any:
        """What loads engines, and must outlive them."""
        return self._started("Runtime")

    def _started(self, kind: str) -> Any:
        self.messages.clear()
        try:
            return getattr(self.module, kind)(self.logger)
        except TypeError as error:  # pybind11's word for a factory that returned nullptr
            what = f"{self.name} {self.version} could not start its {kind.lower()}"
            raise self.messages.failure(what, "see that a GPU and a driver new enough for it are there") from error

    def create_network(self, builder: Any, strongly_typed: bool) -> Any:
        """An empty network; where all are strongly typed, the flag is known but does nothing."""
        if not strongly_typed and not self.has_precision_flags:
            raise BackendError(f"{self.name} {self.version} knows strongly typed networks only; leave typing=weak out")
        flag = 1 << int(self.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return builder.create_network(flag if strongly_typed else 0)

    def set_precision(self, config: Any, precision: str, strongly_typed: bool) -> list[str]:
        """Set the flags of a precision, TF32 (on by default) only where that was asked for; returns the flags set."""
        flags = self.module.BuilderFlag
        config.clear_flag(flags.TF32)
        wanted = ["TF32"] if precision == "tf32" else []
        if not strongly_typed and precision in FLAG_OF_PRECISION:
            wanted.append(FLAG_OF_PRECISION[precision])
        for name in wanted:
            config.set_flag(getattr(flags, name))
        return wanted

    def set_timing_cache(self, config: Any, kept: bytes | None) -> bool:
        """Give the builder what was timed earlier, or an empty cache where that does not fit; False: it has none."""
        if self.is_rtx:
            return False
        for data in (kept, b"") if kept else (b"",):
            cache = config.create_timing_cache(data)
            if cache is not None and config.set_timing_cache(cache, False):
                return True
        return False

    def set_compute_capabilities(self, config: Any, names: tuple[str, ...]) -> None:
        """For which GPUs RTX builds, e.g. `SM89`. Raises `BackendError` where the library has not that."""
        if not names:
            return
        if not self.is_rtx:
            raise BackendError(f"{self.name} builds for the GPU at hand; compute_capabilities is an option of RTX")
        known = self.module.ComputeCapability.__members__
        if unknown := [name for name in names if name not in known or name == "NONE"]:
            taken = ", ".join(name for name in known if name != "NONE")
            raise BackendError(f"{self.name} {self.version} has no compute capability {unknown[0]!r}; it has: {taken}")
        config.num_compute_capabilities = len(names)
        for index, name in enumerate(names):
            if not config.set_compute_capability(known[name], index):
                raise self.messages.failure(f"the compute capability {name} was refused", "name others")

    def gpu_problem(self, major: int, minor: int) -> str | None:
        """Why this library does not run on a GPU of that compute capability, or None."""
        if not self.is_rtx:
            return None
        known = sorted(int(name[2:]) for name in self.module.ComputeCapability.__members__ if name.startswith("SM"))
        if major * 10 + minor in known or major * 10 + minor > known[-1]:
            return None
        listed = ", ".join(f"{each // 10}.{each % 10}" for each in known)
        return f"{self.name} {self.version} does not run on compute capability {major}.{minor}; it does on {listed}"

    def engine_problem(self, runtime: Any, blob: bytes) -> str | None:
        """What the library finds wrong with an engine before it is loaded, or None; only RTX can tell."""
        if not hasattr(runtime, "get_engine_validity"):
            return None
        self.messages.clear()
        validity, diagnostics = runtime.get_engine_validity(blob)
        if validity != self.module.EngineValidity.INVALID:
            return None
        kinds = self.module.EngineInvalidityDiagnostics.__members__
        found = [name.lower().replace("_", " ") for name, kind in kinds.items() if int(diagnostics) & int(kind)]
        return ", ".join(found) or (_short(self.messages.errors[0]) if self.messages.errors else "it does not say why")

    def context_memory_bytes(self, engine: Any) -> int:
        """Device memory that a context of this engine takes for activations, weights not counted."""
        newer = getattr(engine, "device_memory_size_v2", None)
        return int(engine.device_memory_size if newer is None else newer)

    def create_context(self, engine: Any, runtime_cache: bytes | None, cuda_graph: bool) -> tuple[Any, Any]:
        """An execution context, and RTX's cache of what it compiles (None for the others).

        Args:
            runtime_cache: what an earlier run compiled; one that does not fit is left aside by RTX.
            cuda_graph: let RTX run CUDA graphs of its own.
        """
        self.messages.clear()
        if not self.is_rtx:
            context, cache = engine.create_execution_context(), None
        else:
            config = engine.create_runtime_config()
            cache = config.create_runtime_cache()
            if runtime_cache is not None:
                cache.deserialize(runtime_cache)
            config.set_runtime_cache(cache)
            if cuda_graph:
                config.cuda_graph_strategy = self.module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            context = engine.create_execution_context(config)
        if context is None:
            raise self.messages.failure("no execution context could be made", "is there room on the device?")
        return context, cache

    def profiler(self) -> LayerRecorder:
        """Something to give to a context as its profiler."""
        return LayerRecorder(self.module)


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


def import_library(module: str, name: str, install: str) -> TensorRTLibrary:
    """TensorRT, imported. Raises `BackendUnavailableError` where it is not there or its libraries are missing."""
    try:
        found = import_module(module)
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            raise BackendUnavailableError(f"{name} is not installed: {install}") from None
        raise BackendUnavailableError(f"{name} cannot be imported ({_short(str(error))}): {install}") from error
    return TensorRTLibrary(found, name)


def _logger(module: Any, messages: Messages) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]  # known only at run time
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            # Less is more severe; RTX tells as information what is wrong with an engine's header.
            told = severity in (module.ILogger.Severity.INTERNAL_ERROR, module.ILogger.Severity.ERROR)
            if told or msg.startswith("The engine "):
                messages.add(msg)

    return Logger()


def _short(text: str) -> str:
    return " ".join(text.split())[:300].rstrip(". ;")
