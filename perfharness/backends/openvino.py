"""OpenVINO on the CPU: ONNX files and OpenVINO's own, compiled for the shapes of a case."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import (
    Arrays,
    Backend,
    BackendOptions,
    LayerTime,
    ModelSource,
    Session,
    checked_arrays,
    checked_shapes,
)
from perfharness.backends.function_session import aligned_zeros, with_errors
from perfharness.backends.models import call_factory
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import Precision, TensorSpec
from perfharness.model.distribution import install_command

HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
"""Precision -> INFERENCE_PRECISION_HINT; in a quantised model it is that of the layers that are not quantised."""

CAPABILITIES: dict[Precision, str] = {"bf16": "BF16", "fp16": "FP16", "int8": "INT8"}
"""What OPTIMIZATION_CAPABILITIES must have; without it OpenVINO would silently compute in fp32."""


class OpenVinoBackend(Backend):
    """`.onnx` and `.xml` files; functions that return a path, bytes of ONNX, an `onnx.ModelProto` or `openvino.Model`.

    fp32, bf16 and fp16 are the types of the computation, whatever the file holds; int8 is a quantised model
    (`QuantizeLinear` in ONNX, `FakeQuantize` in OpenVINO's own files).
    """

    name = "openvino"
    modes = ("latency", "throughput")
    precisions = ("fp32", "fp16", "bf16", "int8")
    suffixes = (".onnx", ".xml")
    install = install_command("openvino")
    extra = ("streams",)

    def versions(self) -> dict[str, str]:
        """Of openvino."""
        return {"openvino": str(self._library().__version__)}

    def problem(self, options: BackendOptions) -> str | None:
        """Not installed, a GPU, or a precision that this CPU has no instructions for."""
        if (problem := self.option_problem(options, self.extra)) is not None:
            return problem
        if options.device != "cpu":
            return "OpenVINO computes on the CPU here; it has nothing for CUDA"
        if not options.extra.get("streams", "1").isdigit():
            return f"streams is a number, not {options.extra['streams']!r}"
        try:
            library = self._library()
        except BackendUnavailableError as error:
            return str(error)
        able = library.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        needed = CAPABILITIES.get(options.precision)
        if needed is not None and needed not in able:
            return f"this CPU has no instructions for {options.precision}, and OpenVINO would compute in fp32"
        return None

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """Read the model; it is compiled in `allocate`, for the shapes given there."""
        self.check(options)
        self.check_model(model)
        library = self._library()
        source = _source(library, model, options.precision)
        return OpenVinoSession(library, model.name, source, options)

    def _library(self) -> Any:
        _send_nothing()
        try:
            return import_module("openvino")
        except ImportError:
            raise BackendUnavailableError(f"openvino is not installed: {self.install}") from None


class OpenVinoSession(Session):
    """An infer request with tensors in arrays that are allocated once."""

    def __init__(self, library: Any, name: str, source: Any, options: BackendOptions) -> None:
        self._library, self._options, self._name = library, options, name
        self._core = library.Core()
        self._model: Any = None
        if options.cache_dir is not None:
            self._core.set_property({"CACHE_DIR": str(options.cache_dir)})
        self._model = with_errors(lambda: _read(self._core, source), f"{name} cannot be loaded")
        self.inputs = tuple(_spec(port) for port in self._model.inputs)
        self.outputs = tuple(_spec(port) for port in self._model.outputs)
        self._weights = _weights(self._model)
        self._check_precision()
        self._declared = {spec.name: self._model.input(spec.name).get_partial_shape() for spec in self.inputs}
        self._compiled: Any = None
        self._programs: Counter[str] = Counter()
        self._request: Any = None
        self._running = False
        self._done = False
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._host: dict[str, npt.NDArray[Any]] = {}

    def allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Compile for these shapes, and set the tensors of the request."""
        if self._model is None:
            raise BackendError("the session is closed; load the model again")
        whole = checked_shapes(self, shapes)
        self._forget()
        with self.building():
            self._compiled = with_errors(
                lambda: self._made(whole), f"{self._name} could not be compiled for these shapes"
            )
            self._programs["found" if self._compiled.get_property("LOADED_FROM_CACHE") else "made"] += 1
        self._host = {spec.name: aligned_zeros(whole[spec.name], spec.dtype) for spec in self.inputs}
        self._request = self._requested(self._compiled)
        for spec, port in zip(self.outputs, self._compiled.outputs, strict=True):
            if not port.get_partial_shape().is_dynamic:
                self._host[spec.name] = aligned_zeros(tuple(port.get_shape()), spec.dtype)
                self._request.set_tensor(port, self._library.Tensor(self._host[spec.name], shared_memory=True))
        self._shapes = whole

    def compiled_programs(self) -> tuple[int, int]:
        """Of this session."""
        return self._programs["found"], self._programs["made"]

    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the arrays that the request reads."""
        checked_arrays(self, self._shapes, arrays)
        self.synchronize()
        for spec in self.inputs:
            np.copyto(self._host[spec.name], arrays[spec.name])

    def copy_in(self) -> None:
        """Nothing: the request reads the host's arrays."""

    def execute(self) -> None:
        """Start the request."""
        if self._request is None:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        self.synchronize()
        with_errors(self._request.start_async, "the model could not be run")
        self._running = self._done = True

    def copy_out(self) -> None:
        """Nothing: the request writes the host's arrays."""

    def synchronize(self) -> None:
        """Wait for the request."""
        if self._running:
            self._running = False
            with_errors(self._request.wait, "the model could not be run")

    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the host's arrays."""
        if not self._done:
            raise BackendError("there are no outputs; allocate and execute before they are read")
        self.synchronize()
        return {
            spec.name: np.array(self._request.get_output_tensor(index).data) for index, spec in enumerate(self.outputs)
        }

    def settings(self) -> dict[str, str]:
        """What OpenVINO set for this model, once it is compiled, and the dtype of the weights in the file."""
        settings = {"dtypes of weights": ", ".join(f"{kind} {count}" for kind, count in self._weights.items())}
        if self._compiled is not None:
            names = ("PERFORMANCE_HINT", "INFERENCE_PRECISION_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
            settings |= {name: _text(self._compiled.get_property(name)) for name in names}
        return settings

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """From OpenVINO's counters, of a second compilation with them; layers as they are after fusion."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate and write inputs before layers are timed")
        self.synchronize()
        compiled = with_errors(lambda: self._made(self._shapes, counted=True), f"{self._name} could not be compiled")
        request = self._requested(compiled)
        request.infer()
        first = _milliseconds(request)
        for _ in range(rounds):
            request.infer()
        last = _milliseconds(request)
        return [LayerTime(name, _mean_after_first(first.get(name, 0.0), mean, rounds)) for name, mean in last.items()]

    def close(self) -> None:
        """Free everything."""
        self._forget()
        self._model = None

    def _made(self, shapes: Mapping[str, tuple[int, ...]], counted: bool = False) -> Any:
        model = self._model.clone()
        model.reshape({name: list(shape) for name, shape in shapes.items()})
        options = self._options
        config: dict[str, Any] = {
            "PERFORMANCE_HINT": (options.mode or OpenVinoBackend.modes[0]).upper(),
            "PERFORMANCE_HINT_NUM_REQUESTS": 1,
            "INFERENCE_PRECISION_HINT": HINTS[options.precision],
        }
        if options.threads is not None:
            config["INFERENCE_NUM_THREADS"] = options.threads
        if "streams" in options.extra:
            config["NUM_STREAMS"] = int(options.extra["streams"])
        if counted:
            config["PERF_COUNT"] = True
        compiled = self._core.compile_model(model, "CPU", config)
        if (actual := _text(compiled.get_property("INFERENCE_PRECISION_HINT"))) != HINTS[options.precision]:
            raise BackendError(f"OpenVINO would compute in {actual} though {options.precision} was requested")
        return compiled

    def _requested(self, compiled: Any) -> Any:
        """A request that reads the host's arrays."""
        request = compiled.create_infer_request()
        for spec, port in zip(self.inputs, compiled.inputs, strict=True):
            request.set_tensor(port, self._library.Tensor(self._host[spec.name], shared_memory=True))
        return request

    def _check_precision(self) -> None:
        """Raise `BackendError` where a quantised model would be reported as fp32, or vice versa."""
        quantized = "quantised" in self._weights
        if quantized != (self._options.precision == "int8"):
            own = "int8" if quantized else "no int8: it is not quantised"
            raise BackendError(
                f"{self._name} is a model in {own}, and OpenVINO quantises none; request its own precision"
            )

    def _forget(self) -> None:
        self.synchronize()
        self._request = self._compiled = None
        self._shapes, self._host, self._done = {}, {}, False


def _send_nothing() -> None:
    """Keep `openvino_telemetry` out of this process; OpenVINO does not need it.

    It reports each import and conversion to a server, unless the user's home opts out, and forks this process
    for it, in the middle of a measurement.
    """
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # an import of it fails


def _source(library: Any, model: ModelSource, precision: Precision) -> Any:
    """A path, bytes of ONNX, or an `openvino.Model`."""
    if model.path is not None:
        return str(model.path)
    made = call_factory(model, OpenVinoBackend.name, precision)
    if hasattr(made, "SerializeToString"):
        made = made.SerializeToString()
    if isinstance(made, Path):
        made = str(made)
    if not isinstance(made, str | bytes | library.Model):
        raise BackendError(
            f"{model.factory} returned a {type(made).__name__} for openvino; it must return the path of an .onnx or "
            ".xml file, bytes of ONNX, an onnx.ModelProto, or an openvino.Model"
        )
    return made


def _read(core: Any, source: Any) -> Any:
    if isinstance(source, bytes):
        return core.read_model(source)
    return core.read_model(source) if isinstance(source, str) else source


def _spec(port: Any) -> TensorSpec:
    """Spec of an input or output. Raises `BackendError` for types that NumPy does not have."""
    kind = port.get_element_type()
    name = port.get_any_name()
    try:
        dtype = np.dtype(kind.to_dtype()).name
    except Exception:
        raise BackendError(f"{name!r} is {kind}, which NumPy does not have; export the model with float32") from None
    shape = tuple(None if size.is_dynamic else size.get_length() for size in port.get_partial_shape())
    return TensorSpec(name=name, shape=shape, dtype=dtype)


def _weights(model: Any) -> dict[str, int]:
    """Element type -> number of elements of the model's constants; `quantised` -> number of quantising operators."""
    found: dict[str, int] = {}
    for operation in model.get_ops():
        kind = operation.get_type_name()
        if kind == "FakeQuantize":
            found["quantised"] = found.get("quantised", 0) + 1
        elif kind == "Constant":
            element = operation.get_element_type()
            if element.is_real() or element.bitwidth <= 8:
                size = int(np.prod(list(operation.get_output_shape(0))))
                found[element.get_type_name()] = found.get(element.get_type_name(), 0) + size
    return found


def _milliseconds(request: Any) -> dict[str, float]:
    """Of each layer that was executed, by name."""
    found: dict[str, float] = {}
    for node in request.profiling_info:
        if node.status == node.Status.EXECUTED:
            found[node.node_name] = found.get(node.node_name, 0.0) + node.real_time.total_seconds() * 1000
    return found


def _mean_after_first(first: float, mean: float, rounds: int) -> float:
    """Mean without the first inference, of counters that are means over all inferences of a request."""
    return max(0.0, (mean * (rounds + 1) - first) / rounds)


def _text(value: Any) -> str:
    """A property as OpenVINO writes it: `f32`, `LATENCY`, `2`."""
    return str(getattr(value, "get_type_name", lambda: getattr(value, "name", value))())
