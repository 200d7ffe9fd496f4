"""PyTorch: eager, torch.compile and CUDA graphs; fp32, tf32, fp16, bf16, and int8 on the CPU.

Inputs and outputs always have the dtypes of the model's description. A session in fp16 or bf16 casts on the device,
inside `execute`, like a service with float32 data.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from shutil import which
from typing import Any, ClassVar

from perfharness.backends.base import Backend, BackendOptions, imported
from perfharness.backends.models import (
    HALF_DTYPES,
    FactoryModel,
    ModelSource,
    Shape,
    check_own_precision,
    described_model,
    host_dtype,
    named_outputs,
    precision_of_most,
)
from perfharness.backends.session import DeviceTimer, LayerTime, Session, translated, translation, variable
from perfharness.backends.torch_layers import EventTimer, held_bytes, layer_times
from perfharness.distribution import install_command
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that capture CUDA graphs on a GPU."""

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
WARMUP_ROUNDS = 3
"""Rounds on the session's stream before a capture, in which libraries choose algorithms and allocate workspaces."""

COMPILED_SHAPES = 1024
"""Limit of compiled shapes per model; beyond the default of eight, PyTorch runs uncompiled and only logs it."""

COMPILE_LIMITS = (
    *("recompile_limit", "accumulated_recompile_limit"),
    *("cache_size_limit", "accumulated_cache_size_limit"),
)
"""Per-thread compiler settings for that limit; the last two are for PyTorch before 2.6."""


@dataclass
class Program:
    """A module with its inputs and outputs.

    Args:
        input_dtypes: to cast inputs to, on the device.
        output_dtypes: to cast outputs to.
        computes_in: dtype as text.
        exported: by torch.export, so without submodules.
    """

    module: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_dtypes: list[Any]
    output_dtypes: list[Any]
    computes_in: str
    exported: bool = False


class TorchBackend(Backend):
    """Functions that return a `FactoryModel` of an `nn.Module`, and files of `torch.export.save`."""

    name = "torch"
    modes = ("eager", "compile", "cudagraph")
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8")
    suffixes = (".pt2",)
    install = install_command("torch")
    extra: Mapping[str, tuple[str, ...]] = {"compile_mode": COMPILE_MODES, "cudnn_benchmark": ("off", "on")}

    def versions(self) -> dict[str, str]:
        """Versions of PyTorch and its GPU libraries."""
        torch = imported("torch", self.install)
        found = {"torch": str(torch.__version__)}
        if torch.version.cuda is not None:
            found["cuda"] = str(torch.version.cuda)
            if (cudnn := torch.backends.cudnn.version()) is not None:
                found["cudnn"] = str(cudnn)
        return found

    def unsupported(self, options: BackendOptions) -> str | None:
        """Check for a GPU, a compiler, and a precision supported by device and mode."""
        torch, mode = imported("torch", self.install), options.mode or "eager"
        if options.device == "cuda":
            return _gpu_problem(torch, options)
        if options.precision == "int8" and not hasattr(getattr(torch.ao, "quantization", None), "quantize_dynamic"):
            return f"PyTorch {torch.__version__} no longer has dynamic quantisation; install an older version"
        if mode == "cudagraph":
            return "CUDA graphs need a GPU"
        if mode == "compile" and options.precision == "int8":
            return "dynamically quantised layers are not compiled; use mode eager"
        if mode == "compile" and not (which("g++") or which("clang++") or "CXX" in os.environ):
            return "torch.compile needs a C++ compiler on the CPU; install g++"
        return None

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Convert the model to the precision and move it to the device."""
        torch = imported("torch", self.install)
        with translated("the model could not be loaded"):
            return TorchSession(torch, load_program(torch, model, options), options)


class TorchSession(Session):
    """A module in inference mode, on a GPU with its own stream.

    PyTorch's settings are per process, so concurrent sessions must have equal settings.
    """

    _open: ClassVar[list[dict[str, str]]] = []
    """Settings of open sessions."""

    _idle_streams: ClassVar[list[Any]] = []
    """Streams of closed sessions, reused because cuBLAS keeps a workspace per stream (32 MiB on an H200)."""

    def __init__(self, torch: Any, program: Program, options: BackendOptions) -> None:
        super().__init__(program.inputs, program.outputs)
        self._torch, self._program, self._options = torch, program, options
        self._mode = options.mode or "eager"
        self._on_gpu = options.device == "cuda"
        self._device = torch.device("cuda", torch.cuda.current_device()) if self._on_gpu else torch.device("cpu")
        wanted = _process_settings(options)
        if any(one != wanted for one in self._open):
            raise BackendError(
                f"PyTorch is set to {self._open[0]} for another session of this process; close it, or use equal options"
            )
        self._process_settings = wanted
        _set_for_process(torch, wanted)
        self._graph: Any = None
        self._pinned: list[Any] = []
        self._at_device: list[Any] = []
        self._at_host: list[Any] = []
        self._values: list[Any] = []
        self._stream: Any = self._idle_stream() if self._on_gpu else None
        self._module = program.module.to(self._device)
        self._call = self._compiled(self._module) if self._mode == "compile" else self._module
        self._open.append(wanted)

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        """Allocate buffers, and compile for these shapes or capture the graph."""
        if self._on_gpu:
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats(self._device)
        for spec in self.inputs:
            tensor = self._buffer(shapes[spec.name], spec.dtype)
            self._pinned.append(tensor)
            self._host[spec.name] = tensor.numpy()
            self._at_device.append(self._torch.empty_like(tensor, device=self._device) if self._on_gpu else tensor)
        if self._mode != "eager":
            self._prepare()

    def copy_in(self) -> None:
        """Copy host to GPU without waiting; on the CPU the model reads the host buffers."""
        if self._stream is not None:
            self._activate()
            for device, host in zip(self._at_device, self._pinned, strict=True):
                device.copy_(host, non_blocking=True)

    def _execute(self) -> None:
        """Call the module or replay the graph."""
        self._activate()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._values = self._inferred()

    def copy_out(self) -> None:
        """Copy GPU to pinned memory without waiting."""
        if self._stream is None:
            return
        if [value.shape for value in self._values] != [host.shape for host in self._at_host]:
            empty_like = self._torch.empty_like
            self._at_host = [empty_like(value, device="cpu", pin_memory=True) for value in self._values]
        for host, value in zip(self._at_host, self._values, strict=True):
            host.copy_(value, non_blocking=True)

    def synchronize(self) -> None:
        """Wait for the session's stream."""
        if self._stream is not None:
            try:
                self._stream.synchronize()
            except Exception as error:
                raise translation(error, "the model could not be run") from error

    def _results(self) -> Sequence[Any]:
        return [value.numpy() for value in (self._at_host if self._on_gpu else self._values)]

    def _free(self) -> None:
        self._values, self._at_host = [], []
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
        self._pinned, self._at_device = [], []

    def _release(self) -> None:
        self._open.remove(self._process_settings)
        self._module = self._call = None
        self._program.module = None
        if self._stream is not None:
            if self._torch.cuda.current_stream() == self._stream:
                self._torch.cuda.set_stream(self._torch.cuda.default_stream())
            self._idle_streams.append(self._stream)
            self._stream = None
            self._torch.cuda.empty_cache()

    def device_timer(self) -> DeviceTimer | None:
        """Timer with CUDA events on the session's stream."""
        return None if self._stream is None else EventTimer(self._torch, self._stream)

    def device_memory_bytes(self) -> int | None:
        """Peak of the caching allocator since `allocate`, without the CUDA context."""
        return int(self._torch.cuda.max_memory_reserved(self._device)) if self._on_gpu else None

    def parameter_bytes(self) -> int | None:
        """Size of parameters and buffers, except quantised ones."""
        return held_bytes(self._module)

    def settings(self) -> dict[str, str]:
        """PyTorch's settings for this session, and the dtype."""
        settings = {"dtype": self._program.computes_in}
        if self._mode == "compile":
            settings["torch.compile"] = f"mode={self._compile_mode()}, dynamic=False"
        return settings | {"num_threads": str(self._torch.get_num_threads()), **self._process_settings}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Own time of each module, by hooks, on the last written inputs."""
        if self._mode != "eager":
            return f"modules are not timed in mode {self._mode}; measure them in mode eager"
        if self._program.exported:
            return "an exported program has no modules to time; measure the original model"
        self.copy_in()
        self._activate()
        with translated("the layers could not be timed"):
            times: list[LayerTime] = layer_times(self._torch, self._module, self._inferred, self._stream, rounds)
        return times

    def _inferred(self) -> list[Any]:
        """Outputs of one inference, in the dtypes of the description."""
        torch = self._torch
        with torch.inference_mode():
            given = _cast(self._at_device, self._program.input_dtypes)
            return _cast(tensors(torch, self._call(*given)), self._program.output_dtypes)

    def _prepare(self) -> None:
        """Warm up, which compiles, and capture a graph in mode cudagraph. Inputs are zeros here."""
        torch = self._torch
        self.copy_in()
        with ExitStack() as stack:
            if self._mode == "compile":  # compiles on the first call
                stack.enter_context(many_shapes(torch))
                if self._options.cache_dir is not None:  # the default is the user's temporary folder
                    stack.enter_context(variable(CACHE_VARIABLE, str(self._options.cache_dir)))
                stack.enter_context(self.building())
            self._execute()
            self.synchronize()
        for _ in range(WARMUP_ROUNDS - 1):
            self._execute()
        self.synchronize()
        if self._mode == "cudagraph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._values = self._inferred()
            self._graph = graph
            self.synchronize()

    def _compiled(self, module: Any) -> Any:
        # One program per shape, because a program for all sizes would be slower.
        made = self._torch.compile(module, mode=self._compile_mode(), dynamic=False)
        if self._compile_mode() not in WITH_GRAPHS:
            return made

        def with_marked_step(*given: Any) -> Any:  # these modes reuse the memory of outputs in the next step
            self._torch.compiler.cudagraph_mark_step_begin()
            return made(*given)

        return with_marked_step

    def _idle_stream(self) -> Any:
        """A stream unused by open sessions."""
        for index, stream in enumerate(self._idle_streams):
            if stream.device == self._device:
                return self._idle_streams.pop(index)
        return self._torch.cuda.Stream(self._device)

    def _compile_mode(self) -> str:
        return self._options.extra.get("compile_mode", COMPILE_MODES[0])

    def _buffer(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Zeroed host memory, pinned if there is a GPU."""
        made = self._torch.zeros(shape, dtype=getattr(self._torch, dtype))
        return made.pin_memory() if self._on_gpu else made

    def _activate(self) -> None:
        """Make the session's stream current."""
        if self._stream is not None and self._torch.cuda.current_stream() != self._stream:
            self._torch.cuda.set_stream(self._stream)


def _cast(given: Iterable[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Cast tensors; skips `to` if possible, because it takes two microseconds."""
    return [each if each.dtype is dtype else each.to(dtype) for each, dtype in zip(given, dtypes, strict=True)]


def _gpu_problem(torch: Any, options: BackendOptions) -> str | None:
    """Reason why a precision or the GPU is unavailable, or None."""
    if options.precision == "int8":
        return "PyTorch's dynamic int8 is for the CPU; on a GPU use TensorRT, or an already quantised model"
    if torch.version.cuda is None:
        return f"this PyTorch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU here"
    if options.precision in ("tf32", "bf16") and torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} lacks {options.precision}, which needs compute capability 8.0"
    return None


def many_shapes(torch: Any) -> Any:
    """Context manager in which this thread compiles any number of shapes."""
    config = torch._dynamo.config  # imported late, because it takes seconds
    return config.patch({name: COMPILED_SHAPES for name in COMPILE_LIMITS if hasattr(config, name)})


def _process_settings(options: BackendOptions) -> dict[str, str]:
    """PyTorch's settings for a session, as text; GPU settings only for sessions on it."""
    threads = {} if options.threads is None else {"num_threads": str(options.threads)}
    if options.device != "cuda":
        return threads
    tf32 = options.precision == "tf32"
    return {
        **threads,
        "float32_matmul_precision": "high" if tf32 else "highest",
        "cudnn.allow_tf32": "on" if tf32 else "off",
        "cudnn.benchmark": options.extra.get("cudnn_benchmark", "off"),
    }


def _set_for_process(torch: Any, settings: Mapping[str, str]) -> None:
    """Apply settings; they are not restored."""
    if "num_threads" in settings:
        torch.set_num_threads(int(settings["num_threads"]))
    if "cudnn.benchmark" in settings:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about renamed settings
            torch.set_float32_matmul_precision(settings["float32_matmul_precision"])
            torch.backends.cudnn.allow_tf32 = settings["cudnn.allow_tf32"] == "on"
        torch.backends.cudnn.benchmark = settings["cudnn.benchmark"] == "on"


def load_program(torch: Any, model: ModelSource, options: BackendOptions) -> Program:
    """Load the model's module on the CPU. Raises `BackendError`."""
    if model.path is not None:
        return _exported(torch, model, options)
    made = described_model(model, "torch", options.precision, "an nn.Module")
    if not isinstance(made.model, torch.nn.Module):
        raise BackendError(f"{model.factory} returned a FactoryModel of a {type(made.model).__name__}, not nn.Module")
    module = made.model.eval()
    outputs = _described_outputs(torch, module, made)
    module, computes_in = _in_precision(torch, module, options.precision)
    return Program(
        module=module,
        inputs=made.inputs,
        outputs=outputs,
        input_dtypes=[_at_device(torch, spec.dtype, options.precision) for spec in made.inputs],
        output_dtypes=[getattr(torch, spec.dtype) for spec in outputs],
        computes_in=computes_in,
    )


def tensors(torch: Any, made: Any) -> list[Any]:
    """A module's outputs as a list. Raises `BackendError` if they are not tensors."""
    if isinstance(made, torch.Tensor):
        return [made]
    if not isinstance(made, list | tuple) and isinstance(made, Mapping):
        made = list(made.values())
    if isinstance(made, list | tuple) and all(isinstance(each, torch.Tensor) for each in made):
        return list(made)
    raise BackendError(
        f"the model returned a {type(made).__name__}, or parts that are not tensors; it must return a tensor, or "
        "a tuple, list or dict of tensors"
    )


def _in_precision(torch: Any, module: Any, precision: Precision) -> tuple[Any, str]:
    """The module with weights in the precision, and its dtype as text."""
    if precision in HALF_DTYPES:
        return module.to(getattr(torch, HALF_DTYPES[precision])), HALF_DTYPES[precision]
    if precision != "int8":
        return module, "float32"
    linear = [name for name, each in module.named_modules() if isinstance(each, torch.nn.Linear)]
    if not linear:
        raise BackendError("the model has no linear layers, the only ones that dynamic int8 quantises; use fp32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but the alternative needs another library
        quantised = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    return quantised, f"float32, and qint8 in {len(linear)} linear layers (dynamic quantisation skips others)"


def _at_device(torch: Any, dtype: str, precision: Precision) -> Any:
    """Dtype of an input on the device: the precision for floating-point inputs, unchanged for others."""
    own = getattr(torch, dtype)
    return getattr(torch, HALF_DTYPES.get(precision, dtype)) if own.is_floating_point else own


def _described_outputs(torch: Any, module: Any, made: FactoryModel) -> tuple[TensorSpec, ...]:
    """Names, shapes and dtypes, from two inferences with different sizes: dimensions that differ are open."""
    small, large = (_traced(torch, module, made.inputs, size) for size in (2, 3))
    own_names = tuple(map(str, small)) if isinstance(small, Mapping) else ()
    names, few = named_outputs(tensors(torch, small), made.outputs or own_names)
    return tuple(
        TensorSpec(
            name=name,
            shape=tuple(size if size == other else None for size, other in zip(one.shape, two.shape, strict=True)),
            dtype=host_dtype(one.dtype),
        )
        for name, one, two in zip(names, few, tensors(torch, large), strict=True)
    )


def _traced(torch: Any, module: Any, inputs: tuple[TensorSpec, ...], size: int) -> Any:
    """The module's output with every open dimension `size`, on the meta device unless it needs data."""

    def zeros(device: str) -> list[Any]:
        return [
            torch.zeros([each or size for each in spec.shape], dtype=getattr(torch, spec.dtype), device=device)
            for spec in inputs
        ]

    with torch.inference_mode():
        try:
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            empty = {name: tensor.to("meta") for name, tensor in held.items()}
            return torch.func.functional_call(module, empty, tuple(zeros("meta")))
        except Exception:
            return module(*zeros("cpu"))


def _exported(torch: Any, model: ModelSource, options: BackendOptions) -> Program:
    """Load a file of `torch.export.save`, which describes itself."""
    try:
        program = torch.export.load(str(model.path))
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise BackendError(f"{model.path} is not a torch.export program that this PyTorch can read: {why}") from error
    _check_precision(program, model.name, options.precision)
    if options.device == "cuda":  # moves weights and created constants
        program = import_module(f"{torch.__name__}.export.passes").move_to_device_pass(program, "cuda")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    inputs, outputs = (
        tuple(_spec(torch, str(name), values.get(name)) for name in names)
        for names in (signature.user_inputs, signature.user_outputs)
    )
    return Program(
        module=program.module(),
        inputs=inputs,
        outputs=outputs,
        input_dtypes=[values[spec.name].dtype for spec in inputs],
        output_dtypes=[getattr(torch, spec.dtype) for spec in outputs],
        computes_in=HALF_DTYPES.get(options.precision, "float32"),
        exported=True,
    )


def _spec(torch: Any, name: str, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise BackendError(f"{name!r} of the exported program is not a tensor; export the model with tensors only")
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    return TensorSpec(name=name, shape=shape, dtype=host_dtype(value.dtype))


def _check_precision(program: Any, name: str, precision: Precision) -> None:
    """Raise `BackendError` if the program would not compute in the reported precision."""
    sizes: Counter[str] = Counter()
    for tensor in program.state_dict.values():
        if tensor.is_floating_point():
            sizes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    most = max(sizes, key=sizes.__getitem__, default="float32")
    if (own := precision_of_most({most: 1})) is None:
        raise BackendError(f"{name} is exported in {most}; export it in {precision}")
    check_own_precision(name, "torch.export", own, precision)
