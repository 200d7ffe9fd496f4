"""ONNX Runtime: CPU, CUDA and TensorRT providers, buffers bound once, no silent fallback to another provider."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.backends.base import Backend, BackendOptions, Device, imported
from perfharness.backends.cuda_memory import BufferSession, gpu_problem
from perfharness.backends.models import ModelSource, Shape, check_own_precision
from perfharness.backends.onnx_files import model_precision, onnx_source
from perfharness.backends.session import LayerTime, Session, translated
from perfharness.distribution import install_command
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import Precision, TensorSpec

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
"""Mode -> name of the provider."""

OPTIMIZATION_LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}

OTHER_PRECISIONS: dict[str, tuple[Precision, ...]] = {"cpu": (), "cuda": ("tf32",), "tensorrt": ("fp16", "bf16")}
"""Mode -> further precisions in which the provider computes an fp32 model."""

DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""ONNX Runtime's type name -> NumPy's."""


class OnnxRuntimeBackend(Backend):
    """ONNX files, and functions that return a path, the file's bytes, or an `onnx.ModelProto`."""

    name = "onnxruntime"
    modes = ("cpu", "cuda", "tensorrt")
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8")
    suffixes = (".onnx",)
    install = f"{install_command('onnxruntime')}, for a GPU with onnxruntime-gpu instead of onnxruntime"
    libraries = ("onnxruntime", "onnx")
    extra: Mapping[str, tuple[str, ...]] = {"optimization": tuple(OPTIMIZATION_LEVELS), "cudnn_conv_algo_search": ()}

    def modes_on(self, device: Device) -> tuple[str, ...]:
        """Providers for the device; each supports a single kind."""
        return ("cpu",) if device == "cpu" else ("cuda", "tensorrt")

    def unsupported(self, options: BackendOptions) -> str | None:
        """Check the build's providers, the GPU, and the provider's device."""
        self.versions()
        mode = self.mode_of(options)
        if (mode == "cpu") != (options.device == "cpu"):
            return f"mode {mode} does not run on {options.device}"
        available = imported("onnxruntime", self.install).get_available_providers()
        if PROVIDERS[mode] not in available:
            return (
                f"this build of onnxruntime has no {PROVIDERS[mode]}, only {', '.join(available)}; install "
                "onnxruntime-gpu"
            )
        return gpu_problem() if options.device == "cuda" else None

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Open a session on the requested provider."""
        takes = "the path of an .onnx file, its bytes, or an onnx.ModelProto"
        begin_ns = time.perf_counter_ns()
        source = onnx_source(model, self.name, options, takes)
        source_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        others = OTHER_PRECISIONS[self.mode_of(options)]
        check_own_precision(model.name, "ONNX Runtime", model_precision(source), options.precision, others)
        session = OnnxRuntimeSession(imported("onnxruntime", self.install), source, options)
        if options.precision == "int8" and options.calibration is not None:
            session.build_ms = source_ms
        return session

    def mode_of(self, options: BackendOptions) -> str:
        """The given mode, or the device's default."""
        return options.mode or self.modes_on(options.device)[0]


class OnnxRuntimeSession(BufferSession):
    """An `InferenceSession` with an I/O binding to buffers that are allocated once.

    On a GPU it computes in our own CUDA stream, which also copies from and to pinned memory, so that one wait per round
    suffices. Outputs with shapes that do not follow from dimension names of the inputs are allocated by ONNX Runtime in
    each round, and named in `settings`.
    """

    def __init__(self, library: Any, source: Path | bytes, options: BackendOptions) -> None:
        self._on_gpu = options.device == "cuda"
        super().__init__(self._on_gpu)
        self._library, self._source, self._options = library, source, options
        self._provider = PROVIDERS[OnnxRuntimeBackend().mode_of(options)]
        missing = _load_cuda(library) if self._on_gpu else ""
        self._binding: Any = None
        self._left_to_library: tuple[str, ...] = ()
        try:
            self._session = self._made(_session_options(library, options))
            self.inputs = tuple(map(tensor_spec, self._session.get_inputs()))
            self.outputs = tuple(map(tensor_spec, self._session.get_outputs()))
            self._nodes = nodes_by_provider(self._session)
            self._refuse_fallback(missing)
        except BaseException:
            self.close()
            raise
        self._run_options: Any = None  # on the CPU, run options cost 27 microseconds per run (ONNX Runtime 1.31)
        if self._on_gpu:  # the stream is awaited once per round
            self._run_options = library.RunOptions()
            self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        """Create and bind the buffers."""
        device = self._options.device
        known = shapes | output_shapes(self._session, shapes)
        self._left_to_library = tuple(spec.name for spec in self.outputs if spec.name not in known)
        self._binding = self._session.io_binding()
        binds = [(self.inputs, self._binding.bind_input), (self.outputs, self._binding.bind_output)]
        for spec, bind in ((spec, bind) for specs, bind in binds for spec in specs if spec.name in known):
            buffer = self._buffer(spec, known[spec.name])
            bind(spec.name, device, 0, np.dtype(spec.dtype).type, list(known[spec.name]), buffer.pointer)

    def _execute(self) -> None:
        for name in self._left_to_library:  # bind again, because the next run may need another size
            self._binding.bind_output(name, self._options.device)
        self._session.run_with_iobinding(self._binding, self._run_options)

    def copy_out(self) -> None:
        """Copy GPU to host; outputs allocated by ONNX Runtime are there already."""
        if self._on_gpu:
            super().copy_out()
        if self._left_to_library:
            self.synchronize()
            # The binding returns outputs in bound order, and these were bound last.
            values = self._binding.get_outputs()[-len(self._left_to_library) :]
            self._host |= {name: value.numpy() for name, value in zip(self._left_to_library, values, strict=True)}

    def settings(self) -> dict[str, str]:
        """Provider and its nodes, threads, optimisation level."""
        settings = {"provider": self._provider, "optimization": self._options.extra.get("optimization", "all")}
        if self._nodes:
            settings["nodes"] = ", ".join(f"{count} on {provider}" for provider, count in self._nodes.items())
        if self._options.threads is not None:
            settings["intra_op_num_threads"] = str(self._options.threads)
        if self._options.precision in ("fp16", "bf16") and not self._on_gpu:
            settings["arithmetic"] = f"fp32, between casts, in operators without {self._options.precision} on the CPU"
        if self._left_to_library:
            settings["allocated in each round"] = ", ".join(self._left_to_library)
        if self._on_gpu:
            settings |= self._provider_options()
            del settings["user_compute_stream"]
        return settings

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Times from ONNX Runtime's profile of a second session on the same inputs, by operator after fusion.

        On a GPU, that profile has only the host's time to start each operator.
        """
        if self._on_gpu:
            return "ONNX Runtime's profile has only the time to start an operator on a GPU"
        feeds = {spec.name: self._host[spec.name] for spec in self.inputs}
        with tempfile.TemporaryDirectory() as folder:
            options = _session_options(self._library, self._options)
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = self._made(options)
            for _ in range(rounds + 1):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text())
        return layer_times_of_profile(events, rounds)

    def _free(self) -> None:
        self._binding = None
        super()._free()

    def _release(self) -> None:
        self._session = None
        super()._release()

    def _made(self, options: Any) -> Any:
        """Create an `InferenceSession`; ONNX Runtime adds the CPU provider for unsupported operators."""
        providers: list[Any] = [(self._provider, self._provider_options()) if self._on_gpu else self._provider]
        source = self._source if isinstance(self._source, bytes) else str(self._source)
        with translated("the model could not be loaded"):
            session = self._library.InferenceSession(source, options, providers=providers)
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

    def _refuse_fallback(self, missing: str) -> None:
        """Raise if ONNX Runtime replaced the requested provider, which it only logs."""
        used = self._session.get_providers()
        if not used or used[0] != self._provider:
            raise BackendUnavailableError(
                f"onnxruntime: {self._provider} could not be started, so it fell back to {', '.join(used) or 'none'}; "
                f"its libraries are missing or incompatible ({missing or 'see its log on stderr'})"
            )
        if self._nodes and self._provider not in self._nodes:
            raise BackendUnavailableError(
                f"onnxruntime: {self._provider} runs no node of this model; all run on {', '.join(self._nodes)}"
            )


def _load_cuda(library: Any) -> str:
    """Load CUDA and cuDNN from their wheels, where the provider does not search; returns ONNX Runtime's messages."""
    if not hasattr(library, "preload_dlls"):  # before ONNX Runtime 1.21
        return ""
    with redirect_stdout(io.StringIO()) as said:
        library.preload_dlls()
    return " ".join(said.getvalue().split())[:500]


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


def tensor_spec(node: Any) -> TensorSpec:
    """Spec of an input or output. Raises `BackendError` for types unknown to NumPy."""
    if node.type not in DTYPES:
        raise BackendError(
            f"{node.name!r} is {node.type}, which cannot be measured; export the model with numbers instead"
        )
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in node.shape)
    return TensorSpec(name=node.name, shape=shape, dtype=DTYPES[node.type])


def output_shapes(session: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Shapes of the outputs that follow from dimension names and the inputs' shapes.

    Raises `BackendError` if a name would have two sizes.
    """
    sizes: dict[str, int] = {}
    for node in session.get_inputs():
        for wanted, size in zip(node.shape, shapes[node.name], strict=True):
            if isinstance(wanted, str) and sizes.setdefault(wanted, size) != size:
                raise BackendError(
                    f"dimension {wanted!r} would be {sizes[wanted]} and {size}; inputs that share it must agree"
                )
    known = {}
    for node in session.get_outputs():
        shape = [sizes.get(size) if isinstance(size, str) else size for size in node.shape]
        if all(isinstance(size, int) and size > 0 for size in shape):
            known[node.name] = tuple(int(size) for size in shape if size is not None)
    return known


def nodes_by_provider(session: Any) -> dict[str, int]:
    """Number of nodes per provider; empty if this version of ONNX Runtime does not report it."""
    counts: Counter[str] = Counter()
    with suppress(AttributeError, RuntimeError):
        for part in session.get_provider_graph_assignment_info():
            counts[part.ep_name] += len(part.get_nodes())
    return counts


def layer_times_of_profile(events: list[dict[str, Any]], rounds: int) -> list[LayerTime]:
    """Mean milliseconds per operator over the last `rounds` runs of a profile, in order of execution.

    The first run is excluded, because it allocates. Times of repeated operators within a run are added up.
    """
    runs = [event for event in events if event.get("cat") == "Session" and event.get("name") == "model_run"]
    if len(runs) < rounds + 1:
        raise BackendError(f"ONNX Runtime's profile has {len(runs)} runs, not {rounds + 1}")
    begin = runs[-rounds]["ts"]
    total: defaultdict[str, float] = defaultdict(float)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time") and event["ts"] >= begin:
            total[name.removesuffix("_kernel_time")] += float(event["dur"])
    return [LayerTime(name, microseconds / 1000 / rounds) for name, microseconds in total.items()]
