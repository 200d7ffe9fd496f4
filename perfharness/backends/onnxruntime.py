"""ONNX Runtime: CPU, CUDA and TensorRT providers, buffers bound once, no silent fallback of a provider."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import (
    Arrays,
    Backend,
    BackendOptions,
    Device,
    DeviceTimer,
    LayerTime,
    ModelSource,
    Session,
    checked_arrays,
    checked_shapes,
)
from perfharness.backends.cuda_memory import CudaStream, PairedBuffer, gpu_problem, threads_problem
from perfharness.backends.models import call_factory
from perfharness.backends.onnx_precision import model_precision
from perfharness.backends.onnxruntime_graph import (
    Shape,
    layer_times_of_profile,
    nodes_by_provider,
    output_shapes,
    tensor_spec,
)
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from perfharness.model.bench import Precision
from perfharness.model.distribution import install_command

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
"""Mode -> the provider's name."""

OPTIMIZATION_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


class OnnxRuntimeBackend(Backend):
    """ONNX files, and functions that return a path, the file's bytes, or an `onnx.ModelProto`."""

    name = "onnxruntime"
    modes = ("cpu", "cuda", "tensorrt")
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8")
    suffixes = (".onnx",)
    install = f"{install_command('onnxruntime')}, for a GPU also onnxruntime-gpu in place of onnxruntime"
    extra = ("optimization", "cudnn_conv_algo_search")

    def modes_on(self, device: Device) -> tuple[str, ...]:
        """Providers for that device: each computes on one kind."""
        return ("cpu",) if device == "cpu" else ("cuda", "tensorrt")

    def versions(self) -> dict[str, str]:
        """Of onnxruntime and onnx."""
        return {"onnxruntime": str(self._library().__version__), "onnx": str(_onnx(self.install).__version__)}

    def problem(self, options: BackendOptions) -> str | None:
        """Not installed, a build without the provider, no GPU, or a precision that the provider does not support."""
        if (problem := self.option_problem(options, self.extra)) is not None:
            return problem
        try:
            library = self._library()
            _onnx(self.install)
        except BackendUnavailableError as error:
            return str(error)
        if (level := options.extra.get("optimization", "all")) not in OPTIMIZATION_LEVELS:
            return f"there is no optimization level {level!r}; there are: {', '.join(OPTIMIZATION_LEVELS)}"
        return _device_problem(options, library.get_available_providers())

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """A session on the requested provider."""
        self.check(options)
        self.check_model(model)
        library = self._library()
        source = _source(model, options.precision)
        _check_precision(source, model.name, options)
        return OnnxRuntimeSession(library, source, options)

    def _library(self) -> Any:
        try:
            return import_module("onnxruntime")
        except ImportError:
            raise BackendUnavailableError(f"onnxruntime is not installed: {self.install}") from None


@dataclass
class _Buffer:
    """Memory of an input or output; `paired` on a GPU, else only the host's array."""

    host: npt.NDArray[Any]
    paired: PairedBuffer | None = None

    @property
    def pointer(self) -> int:
        return self.paired.device_pointer if self.paired is not None else int(self.host.ctypes.data)


class OnnxRuntimeSession(Session):
    """An `InferenceSession` with an I/O binding to buffers that are allocated once.

    On a GPU the session computes in a CUDA stream of ours, in which the copies from and to pinned memory run too, so
    that one wait per round suffices. Outputs whose shape does not follow from the names of the inputs' dimensions are
    allocated by ONNX Runtime in each round, and `settings` names them.
    """

    def __init__(self, library: Any, source: str | bytes, options: BackendOptions) -> None:
        self._library, self._source, self._options = library, source, options
        self._provider = PROVIDERS[_mode(options)]
        self._on_gpu = options.device == "cuda"
        self._stream = CudaStream() if self._on_gpu else None
        self._missing = _load_cuda(library) if self._on_gpu else ""
        self._session: Any = None
        self._binding: Any = None
        self._shapes: dict[str, Shape] = {}
        self._buffers: dict[str, _Buffer] = {}
        self._left_to_library: tuple[str, ...] = ()
        self._results: dict[str, npt.NDArray[Any]] = {}
        try:
            self._session = self._made(_session_options(library, options))
            self.inputs = tuple(tensor_spec(node) for node in self._session.get_inputs())
            self.outputs = tuple(tensor_spec(node) for node in self._session.get_outputs())
            self._nodes = nodes_by_provider(self._session)
            self._refuse_fallback()
        except BaseException:
            self.close()
            raise
        self._run_options: Any = None  # own run options cost 27 microseconds per run on the CPU (ONNX Runtime 1.31)
        if self._on_gpu:  # we wait for the stream once per round
            self._run_options = library.RunOptions()
            self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def allocate(self, shapes: Mapping[str, Shape]) -> None:
        """Make and bind the buffers."""
        self._open()
        self._shapes = {}
        whole = checked_shapes(self, shapes)
        out = output_shapes(self._session, whole)
        self._free_buffers()
        self._left_to_library = tuple(spec.name for spec in self.outputs if spec.name not in out)
        self._binding = self._session.io_binding()
        device = self._device()
        for spec in self.inputs:
            buffer = self._buffer(spec.name, whole[spec.name], spec.dtype)
            self._binding.bind_input(
                spec.name, device, 0, np.dtype(spec.dtype).type, list(whole[spec.name]), buffer.pointer
            )
        for spec in self.outputs:
            if spec.name in out:
                buffer = self._buffer(spec.name, out[spec.name], spec.dtype)
                self._binding.bind_output(
                    spec.name, device, 0, np.dtype(spec.dtype).type, list(out[spec.name]), buffer.pointer
                )
        self._shapes = whole

    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the host's buffers, on the CPU those that the model reads."""
        checked_arrays(self, self._shapes, arrays)
        for spec in self.inputs:
            np.copyto(self._buffers[spec.name].host, arrays[spec.name])

    def copy_in(self) -> None:
        """Host to GPU; on the CPU the model reads the host's buffers."""
        if self._stream is not None:
            for spec in self.inputs:
                if (paired := self._buffers[spec.name].paired) is not None:
                    paired.copy_in(self._stream)

    def execute(self) -> None:
        """One inference; on the CPU it is done when this returns."""
        if self._binding is None:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        try:
            for name in self._left_to_library:  # bound again: the next run may need another size
                self._binding.bind_output(name, self._device())
            self._session.run_with_iobinding(self._binding, self._run_options)
        except Exception as error:
            raise _translated(error, "the model could not be run") from error

    def copy_out(self) -> None:
        """GPU to host."""
        if self._stream is not None:
            for spec in self.outputs:
                if spec.name in self._buffers and (paired := self._buffers[spec.name].paired) is not None:
                    paired.copy_out(self._stream)
        if self._left_to_library:
            self.synchronize()
            # The binding holds outputs in the order in which they were bound: these were bound last.
            values = self._binding.get_outputs()[-len(self._left_to_library) :]
            self._results = {name: value.numpy() for name, value in zip(self._left_to_library, values, strict=True)}

    def synchronize(self) -> None:
        """Wait for the stream."""
        if self._stream is not None:
            self._stream.synchronize()

    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the host's buffers."""
        if self._binding is None:
            raise BackendError("nothing is allocated; allocate and execute before outputs are read")
        return {
            spec.name: np.array(
                self._buffers[spec.name].host if spec.name in self._buffers else self._results[spec.name]
            )
            for spec in self.outputs
        }

    def device_timer(self) -> DeviceTimer | None:
        """On the stream in which the model runs."""
        return None if self._stream is None else self._stream.timer()

    def stream_pointer(self) -> int | None:
        """Of the stream in which the model runs."""
        return None if self._stream is None else self._stream.pointer

    def threads_problem(self) -> str | None:
        """On a GPU a problem with waiting for a stream; ONNX Runtime itself releases the GIL."""
        return threads_problem() if self._on_gpu else None

    def settings(self) -> dict[str, str]:
        """Provider and its nodes, threads, level of optimisation."""
        settings = {"provider": self._provider, "optimization": self._options.extra.get("optimization", "all")}
        if self._nodes:
            settings["nodes"] = ", ".join(f"{count} on {provider}" for provider, count in self._nodes.items())
        if self._options.threads is not None:
            settings["intra_op_num_threads"] = str(self._options.threads)
        if self._options.precision in ("fp16", "bf16") and not self._on_gpu:
            settings["arithmetic"] = (
                f"fp32, between casts, in operators that have no {self._options.precision} on the CPU"
            )
        if self._left_to_library:
            settings["allocated in each round"] = ", ".join(self._left_to_library)
        if self._on_gpu:
            settings |= {
                name: value for name, value in self._provider_options().items() if name != "user_compute_stream"
            }
        return settings

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """From ONNX Runtime's own profile, of a second session on the same inputs; operators as they are after fusion.

        On a GPU that profile holds the host's time for starting each operator, not the GPU's time.
        """
        if self._on_gpu:
            return "ONNX Runtime's profile has the time to start an operator on a GPU, not the operator's own"
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate and write inputs before layers are timed")
        feeds = {spec.name: self._buffers[spec.name].host for spec in self.inputs}
        with tempfile.TemporaryDirectory() as folder:
            options = _session_options(self._library, self._options)
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = self._made(options)
            for _ in range(rounds + 1):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text())
        return layer_times_of_profile(events, rounds)

    def close(self) -> None:
        """Free session, buffers and stream."""
        self._binding = None
        self._session = None
        self._shapes = {}
        self._free_buffers()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _made(self, options: Any) -> Any:
        """An `InferenceSession`; ONNX Runtime adds the CPU provider for operators that the other does not support."""
        providers: list[Any] = [(self._provider, self._provider_options()) if self._on_gpu else self._provider]
        try:
            session = self._library.InferenceSession(self._source, options, providers=providers)
        except Exception as error:
            raise _translated(error, "the model could not be loaded") from error
        session.disable_fallback()
        return session

    def _provider_options(self) -> dict[str, str]:
        """Options of the CUDA or TensorRT provider."""
        options, stream = self._options, self._stream
        given = {"device_id": "0", "has_user_compute_stream": "1"}
        given["user_compute_stream"] = str(stream.pointer if stream is not None else 0)
        if self._provider == PROVIDERS["cuda"]:
            given["use_tf32"] = "1" if options.precision == "tf32" else "0"
            given["cudnn_conv_algo_search"] = options.extra.get("cudnn_conv_algo_search", "EXHAUSTIVE")
            return given
        given |= {f"trt_{precision}_enable": "1" for precision in ("fp16", "bf16") if options.precision == precision}
        if options.cache_dir is not None:
            cache_folder = str(options.cache_dir)
            given |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": cache_folder}
            given |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": cache_folder}
        return given

    def _refuse_fallback(self) -> None:
        """Raise where ONNX Runtime took another provider than the requested one, which it only logs."""
        used = self._session.get_providers()
        if not used or used[0] != self._provider:
            raise BackendUnavailableError(
                f"onnxruntime: {self._provider} could not be started and it fell back to {', '.join(used) or 'none'}; "
                f"its libraries are missing or do not fit ({self._missing or 'its log on stderr names them'})"
            )
        if self._nodes and self._provider not in self._nodes:
            raise BackendUnavailableError(
                f"onnxruntime: {self._provider} takes no node of this model; all run on {', '.join(self._nodes)}"
            )

    def _device(self) -> str:
        return "cuda" if self._on_gpu else "cpu"

    def _buffer(self, name: str, shape: Shape, dtype: str) -> _Buffer:
        if self._on_gpu:
            paired = PairedBuffer(shape, dtype)
            made = _Buffer(paired.host, paired)
        else:
            try:
                made = _Buffer(np.zeros(shape, dtype=dtype))
            except MemoryError as error:
                raise OutOfMemoryError(f"no room for {name} of {shape} in the host's memory") from error
        self._buffers[name] = made
        return made

    def _free_buffers(self) -> None:
        self._binding = None
        for buffer in self._buffers.values():
            if buffer.paired is not None:
                buffer.host = np.empty(0)
                buffer.paired.close()
        self._buffers = {}
        self._results = {}

    def _open(self) -> None:
        if self._session is None:
            raise BackendError("the session is closed; load the model again")


def _mode(options: BackendOptions) -> str:
    return options.mode or OnnxRuntimeBackend().modes_on(options.device)[0]


def _device_problem(options: BackendOptions, available: list[str]) -> str | None:
    """Why the combination of provider, device and precision is not possible here, or None."""
    mode = _mode(options)
    provider = PROVIDERS[mode]
    if (mode == "cpu") != (options.device == "cpu"):
        return f"mode {mode} does not run on {options.device}"
    if provider not in available:
        return f"this build of onnxruntime has no {provider}, only {', '.join(available)}; install onnxruntime-gpu"
    return gpu_problem() if options.device == "cuda" else None


def _load_cuda(library: Any) -> str:
    """Load CUDA and cuDNN from their wheels, which the provider does not search; returns ONNX Runtime's messages."""
    if not hasattr(library, "preload_dlls"):  # before ONNX Runtime 1.21
        return ""
    with redirect_stdout(io.StringIO()) as said:
        library.preload_dlls()
    return " ".join(said.getvalue().split())[:500]


def _onnx(install: str) -> Any:
    try:
        return import_module("onnx")
    except ImportError:
        raise BackendUnavailableError(f"onnx is not installed: {install}") from None


def _source(model: ModelSource, precision: Precision) -> str | bytes:
    """Path or bytes of the model."""
    if model.path is not None:
        return str(model.path)
    made = call_factory(model, OnnxRuntimeBackend.name, precision)
    if hasattr(made, "SerializeToString"):
        made = made.SerializeToString()
    if isinstance(made, str | Path):
        return str(made)
    if not isinstance(made, bytes):
        raise BackendError(
            f"{model.factory} returned a {type(made).__name__} for onnxruntime; it must return the path of an .onnx "
            "file, its bytes, or an onnx.ModelProto"
        )
    return made


def _check_precision(source: str | bytes, name: str, options: BackendOptions) -> None:
    """Raise `BackendError` where the model would not be computed in the reported precision."""
    own = model_precision(source)
    if own is None:
        return
    possible = {own}
    if own == "fp32" and _mode(options) == "cuda":
        possible.add("tf32")
    if own == "fp32" and _mode(options) == "tensorrt":
        possible |= {"fp16", "bf16"}
    if options.precision not in possible:
        raise BackendError(
            f"{name} is a model in {own}, and ONNX Runtime computes in a model's own precision here; ask for "
            f"{' or '.join(sorted(possible))}, or give a model in {options.precision}"
        )


def _session_options(library: Any, options: BackendOptions) -> Any:
    made = library.SessionOptions()
    made.log_severity_level = 3
    level = OPTIMIZATION_LEVELS[options.extra.get("optimization", "all")]
    made.graph_optimization_level = getattr(library.GraphOptimizationLevel, level)
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if options.threads is not None:
        made.intra_op_num_threads = options.threads
        made.inter_op_num_threads = 1
    return made


def _translated(error: Exception, what: str) -> BackendError:
    """ONNX Runtime's exceptions have one class per code; out of memory is recognised by the text only."""
    text = " ".join(str(error).split())
    lowered = text.lower()
    if any(
        sign in lowered for sign in ("failed to allocate memory", "out of memory", "bad_alloc", "available memory of")
    ):
        return OutOfMemoryError(f"{what}: {text[:300]}")
    return BackendError(f"{what}: {text[:500]}")
