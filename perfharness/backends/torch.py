"""PyTorch: eager, torch.compile and CUDA graphs, each also channels-last; fp32, tf32, fp16, bf16, int8 on the CPU.

Inputs and outputs have the dtypes of the model's description in every precision: a session in fp16 or bf16 casts on the
device, inside `execute`, as a service with float32 data would.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from shutil import which
from threading import current_thread, main_thread
from traceback import clear_frames
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import (
    Arrays,
    Backend,
    BackendOptions,
    DeviceTimer,
    LayerTime,
    ModelSource,
    Session,
    checked_arrays,
    checked_shapes,
)
from perfharness.backends.torch_flags import ProcessSettings, many_shapes
from perfharness.backends.torch_layers import layer_times
from perfharness.backends.torch_program import Program, load_program, tensors
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from perfharness.model.distribution import install_command

INSTALL = install_command("torch")
CHANNELS_LAST = "channels-last"
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that capture CUDA graphs, on a GPU."""

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
WARMUP_ROUNDS = 3
"""Rounds before a capture, on the session's stream, in which libraries choose algorithms and allocate workspaces."""


class TorchBackend(Backend):
    """Functions that return a `FactoryModel` of an `nn.Module`, and files of `torch.export.save`."""

    name = "torch"
    modes = (
        "eager",
        "compile",
        "cudagraph",
        CHANNELS_LAST,
        f"compile+{CHANNELS_LAST}",
        f"cudagraph+{CHANNELS_LAST}",
    )
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8")
    suffixes = (".pt2",)
    install = INSTALL
    extra = ("compile_mode", "cudnn_benchmark")

    def versions(self) -> dict[str, str]:
        """Of PyTorch, and of its GPU libraries."""
        torch = self._library()
        found = {"torch": str(torch.__version__)}
        if torch.version.cuda is not None:
            found["cuda"] = str(torch.version.cuda)
            if (cudnn := torch.backends.cudnn.version()) is not None:
                found["cudnn"] = str(cudnn)
        return found

    def problem(self, options: BackendOptions) -> str | None:
        """Not installed, no GPU, no compiler, or a precision that device or mode do not support."""
        if (problem := self.option_problem(options, self.extra)) is not None:
            return problem
        for name, values in (("compile_mode", COMPILE_MODES), ("cudnn_benchmark", ("on", "off"))):
            if options.extra.get(name, values[0]) not in values:
                return f"{name} cannot be {options.extra[name]!r}; it can be: {', '.join(values)}"
        try:
            torch = self._library()
        except BackendUnavailableError as error:
            return str(error)
        return _device_problem(torch, options) or _mode_problem(torch, options)

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """Convert the model to precision and layout, and move it to the device."""
        self.check(options)
        self.check_model(model)
        torch = self._library()
        with translated(torch, "the model could not be loaded"):
            return TorchSession(torch, load_program(torch, model, options), options)

    def _library(self) -> Any:
        try:
            return import_module("torch")
        except ImportError:
            raise BackendUnavailableError(f"torch is not installed: {INSTALL}") from None


class TorchSession(Session):
    """A module in inference mode, with a stream of its own on a GPU.

    PyTorch's settings are the process's: sessions that are open at the same time must have equal settings.
    """

    def __init__(self, torch: Any, program: Program, options: BackendOptions) -> None:
        self._torch, self._program, self._options = torch, program, options
        self._mode = (options.mode or "eager").removesuffix(CHANNELS_LAST).rstrip("+") or "eager"
        self._channels_last = (options.mode or "").endswith(CHANNELS_LAST)
        self._on_gpu = options.device == "cuda"
        self._device = torch.device("cuda", torch.cuda.current_device()) if self._on_gpu else torch.device("cpu")
        self.inputs, self.outputs = program.inputs, program.outputs
        self._process_settings = ProcessSettings(torch, options)
        self._graph: Any = None
        self._host: dict[str, Any] = {}
        self._at_device: dict[str, Any] = {}
        self._results: list[Any] = []
        self._host_results: list[Any] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._closed = False
        try:
            self._stream = _stream(torch, self._device) if self._on_gpu else None
            module = program.module.to(self._device)
            if self._channels_last:
                module = module.to(memory_format=torch.channels_last)
            self._module = module
            self._call = self._compiled(module) if self._mode == "compile" else module
        except BaseException:
            self._process_settings.close()
            raise

    def allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Allocate buffers; compile for these shapes, or capture the graph."""
        self._open()
        self._shapes = {}
        whole = checked_shapes(self, shapes)
        self._forget()
        with translated(self._torch, "the shapes could not be allocated"):
            if self._on_gpu:
                self._torch.cuda.empty_cache()
                self._torch.cuda.reset_peak_memory_stats(self._device)
            for spec in self.inputs:
                self._host[spec.name] = self._buffer(whole[spec.name], spec.dtype)
                self._at_device[spec.name] = self._at(self._host[spec.name])
            if self._mode != "eager":
                self._prepare()
        self._shapes = whole

    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the host's buffers, in the layout in which they are copied."""
        checked_arrays(self, self._shapes, arrays)
        for spec in self.inputs:
            np.copyto(self._host[spec.name].numpy(), arrays[spec.name])

    def copy_in(self) -> None:
        """Host to GPU, without waiting; on the CPU the model reads the host's buffers."""
        if self._stream is not None:
            self._activate()
            for name, host in self._host.items():
                self._at_device[name].copy_(host, non_blocking=True)

    def execute(self) -> None:
        """One inference: a call of the module, or a replay of the graph."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        self._activate()
        try:
            if self._graph is not None:
                self._graph.replay()
            else:
                self._results = self._inferred()
        except Exception as error:
            raise _translation(self._torch, error, "the model could not be run") from error

    def copy_out(self) -> None:
        """GPU to pinned memory, without waiting."""
        if self._stream is None:
            return
        if [result.shape for result in self._results] != [host.shape for host in self._host_results]:
            self._host_results = [
                self._torch.empty_like(result, device="cpu", pin_memory=True) for result in self._results
            ]
        for host, result in zip(self._host_results, self._results, strict=True):
            host.copy_(result, non_blocking=True)

    def synchronize(self) -> None:
        """Wait for the session's stream."""
        if self._stream is not None:
            try:
                self._stream.synchronize()
            except Exception as error:
                raise _translation(self._torch, error, "the model could not be run") from error

    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Copies, in the order of `outputs`."""
        results = self._host_results if self._on_gpu else self._results
        if not self._shapes or not results:
            raise BackendError("there are no outputs; allocate and run a round before they are read")
        return {
            spec.name: np.array(result.numpy(), order="C") for spec, result in zip(self.outputs, results, strict=True)
        }

    def close(self) -> None:
        """Free model and buffers, and close PyTorch's settings."""
        if self._closed:
            return
        self._closed = True
        self._shapes = {}
        self._forget()
        self._module = self._call = None
        self._program.release()
        if self._stream is not None:
            if self._torch.cuda.current_stream() == self._stream:
                self._torch.cuda.set_stream(self._torch.cuda.default_stream())
            _IDLE_STREAMS.append(self._stream)
            self._stream = None
            self._torch.cuda.empty_cache()
        self._process_settings.close()

    def device_timer(self) -> DeviceTimer | None:
        """From CUDA events on the session's stream."""
        return None if self._stream is None else _EventTimer(self._torch, self._stream)

    def stream_pointer(self) -> int | None:
        """Of the session's stream."""
        return None if self._stream is None else int(self._stream.cuda_stream)

    def compiled_programs(self) -> tuple[int, int]:
        """Inductor's graphs."""
        with suppress(ImportError, AttributeError):  # versions that do not count them
            counted = import_module("torch._dynamo.utils").counters["inductor"]
            return counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"] + counted["fxgraph_cache_bypass"]
        return 0, 0

    def device_memory_bytes(self) -> int | None:
        """Peak of the caching allocator since `allocate`, without the CUDA context."""
        return int(self._torch.cuda.max_memory_reserved(self._device)) if self._on_gpu else None

    def settings(self) -> dict[str, str]:
        """PyTorch's settings for this session, layout, dtype, and what was compiled or quantised."""
        settings = {"dtype": self._program.computes_in, "memory_format": "contiguous"}
        if self._channels_last:
            settings["memory_format"] = "channels_last"
        if self._mode == "compile":
            settings["torch.compile"] = f"mode={self._compile_mode()}, dynamic=False"
        return settings | self._process_settings.described()

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Of each module's own work, by hooks, on the last written inputs."""
        if self._mode != "eager":
            return f"modules have no times of their own in mode {self._options.mode}; measure them in mode eager"
        if self._program.exported:
            return "an exported program has no modules left that could be timed; measure the model it was exported from"
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate and write inputs before layers are timed")
        self.copy_in()
        self._activate()
        with translated(self._torch, "the layers could not be timed"):
            times: list[LayerTime] = layer_times(self._torch, self._module, self._inferred, self._stream, rounds)
        return times

    def _inferred(self) -> list[Any]:
        """The outputs of one inference, in the dtypes of the description."""
        torch = self._torch
        with torch.inference_mode():
            given = _cast(self._at_device.values(), self._program.input_dtypes)
            return _cast(tensors(torch, self._call(*given)), self._program.output_dtypes)

    def _prepare(self) -> None:
        """Warm up, which compiles, and capture where that is the mode. Inputs are zeros here."""
        torch = self._torch
        if self._on_gpu and self._mode == "compile" and self._compile_mode() in WITH_GRAPHS:
            _check_graphs_in_thread(self._compile_mode())
        self._activate()
        for host in self._host.values():
            host.zero_()
        self.copy_in()
        with ExitStack() as stack:
            if self._mode == "compile":  # compiled at the first call
                stack.enter_context(many_shapes(torch))
                stack.enter_context(_cached_in(self._options.cache_dir))
                stack.enter_context(self.building())
            self._results = self._inferred()
            self.synchronize()
        for _ in range(WARMUP_ROUNDS - 1):
            self._results = self._inferred()
        self.synchronize()
        if self._mode == "cudagraph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._results = self._inferred()
            self._graph = graph
            self.synchronize()

    def _compiled(self, module: Any) -> Any:
        # One program per shape: a program for all sizes would be slower.
        made = self._torch.compile(module, mode=self._compile_mode(), dynamic=False)
        if self._compile_mode() not in WITH_GRAPHS:
            return made

        def with_marked_step(*given: Any) -> Any:  # these modes reuse the memory of outputs from step to step
            self._torch.compiler.cudagraph_mark_step_begin()
            return made(*given)

        return with_marked_step

    def _compile_mode(self) -> str:
        return self._options.extra.get("compile_mode", COMPILE_MODES[0])

    def _buffer(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Host memory of zeros, pinned where there is a GPU."""
        made = self._torch.zeros(shape, dtype=getattr(self._torch, dtype))
        if self._channels_last and len(shape) == 4:
            made = made.contiguous(memory_format=self._torch.channels_last)
        return made.pin_memory() if self._on_gpu else made

    def _at(self, host: Any) -> Any:
        """The buffer at the device, in the same layout."""
        return self._torch.empty_like(host, device=self._device) if self._on_gpu else host

    def _activate(self) -> None:
        """Make the session's stream the current one."""
        if self._stream is not None and self._torch.cuda.current_stream() != self._stream:
            self._torch.cuda.set_stream(self._stream)

    def _forget(self) -> None:
        """Release what `allocate` made."""
        if self._stream is not None:
            self._stream.synchronize()
        self._results, self._host_results = [], []
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
        self._host, self._at_device = {}, {}

    def _open(self) -> None:
        if self._closed:
            raise BackendError("the session is closed; load the model again")


def _cast(given: Iterable[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Tensors in these dtypes; skips `to` where possible, which takes two microseconds."""
    return [each if each.dtype is dtype else each.to(dtype) for each, dtype in zip(given, dtypes, strict=True)]


_IDLE_STREAMS: list[Any] = []
"""Streams of closed sessions, for reuse: cuBLAS keeps a workspace per stream, 32 MiB on an H200."""


def _stream(torch: Any, device: Any) -> Any:
    """A stream that no open session has."""
    for index, stream in enumerate(_IDLE_STREAMS):
        if stream.device == device:
            return _IDLE_STREAMS.pop(index)
    return torch.cuda.Stream(device)


class _EventTimer(DeviceTimer):
    def __init__(self, torch: Any, stream: Any) -> None:
        self._stream = stream
        self._first = torch.cuda.Event(enable_timing=True)
        self._last = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        self._first.record(self._stream)

    def stop(self) -> None:
        self._last.record(self._stream)

    def milliseconds(self) -> float:
        self._last.synchronize()
        return float(self._first.elapsed_time(self._last))


def _device_problem(torch: Any, options: BackendOptions) -> str | None:
    """Why device and precision are not possible here, or None."""
    if options.device == "cpu":
        if options.precision == "int8" and not hasattr(getattr(torch.ao, "quantization", None), "quantize_dynamic"):
            return f"PyTorch {torch.__version__} has no dynamic quantisation any more; install an older one"
        return None
    if options.precision == "int8":
        return "PyTorch's dynamic int8 is for the CPU; on a GPU use TensorRT, or a model that is quantised already"
    if torch.version.cuda is None:
        return f"this PyTorch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU here"
    if options.precision in ("tf32", "bf16") and torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} has no {options.precision}, which came with compute capability 8.0"
    return None


def _mode_problem(torch: Any, options: BackendOptions) -> str | None:
    """Why the mode is not possible here, or None."""
    del torch
    mode = options.mode or "eager"
    if mode.startswith("cudagraph") and options.device == "cpu":
        return "CUDA graphs need a GPU"
    if mode.startswith("compile"):
        if options.precision == "int8":
            return "dynamically quantised layers are not compiled; use mode eager"
        if options.device == "cpu" and not (which("g++") or which("clang++") or "CXX" in os.environ):
            return "torch.compile needs a C++ compiler on the CPU; install g++"
    return None


@contextmanager
def _cached_in(folder: Path | None) -> Iterator[None]:
    """Set Inductor's cache folder; its default is a user's temporary folder."""
    if folder is None:
        yield
        return
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[CACHE_VARIABLE]
        if before is not None:
            os.environ[CACHE_VARIABLE] = before


def _check_graphs_in_thread(compile_mode: str) -> None:
    """Raise `BackendError` where torch.compile asserts that its CUDA graphs are in the main thread: before 2.13."""
    if current_thread() is not main_thread() and not hasattr(
        import_module("torch._inductor.cudagraph_trees"), "_initialize_tls"
    ):
        raise BackendError(
            f"this PyTorch has the CUDA graphs of compile_mode={compile_mode} in the main thread only (PyTorch's issue "
            "123177); take 2.13 or newer, or compile_mode=default"
        )


@contextmanager
def translated(torch: Any, what: str) -> Iterator[None]:
    """PyTorch's exceptions as ours."""
    try:
        yield
    except Exception as error:
        raise _translation(torch, error, what) from error


def _translation(torch: Any, error: Exception, what: str) -> BackendError:
    if isinstance(error, BackendError):
        return error
    text = " ".join(str(error).split())
    signs = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "not enough memory")
    if isinstance(error, torch.cuda.OutOfMemoryError) or any(sign in text for sign in signs):
        clear_frames(error.__traceback__)  # free the memory of the failed call, so that a smaller one may succeed
        return OutOfMemoryError(f"{what}: {text[:300]}")
    return BackendError(f"{what}: {type(error).__name__}: {text[:500]}")
