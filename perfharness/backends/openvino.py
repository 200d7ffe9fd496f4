"""OpenVINO on the CPU: ONNX files and OpenVINO's own, compiled for the shapes of a case."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfharness.backends.base import NUMBER, Backend, BackendOptions, imported
from perfharness.backends.models import ModelSource, Shape
from perfharness.backends.onnx_files import onnx_source
from perfharness.backends.session import LayerTime, Session, aligned_zeros, translated
from perfharness.errors import BackendError
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
    extra: Mapping[str, tuple[str, ...]] = {"streams": NUMBER}

    def versions(self) -> dict[str, str]:
        """Of openvino."""
        return {"openvino": str(self._library().__version__)}

    def unsupported(self, options: BackendOptions) -> str | None:
        """A GPU, or a precision that this CPU has no instructions for."""
        if options.device != "cpu":
            return "OpenVINO computes on the CPU here; it has nothing for CUDA"
        able = self._library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        needed = CAPABILITIES.get(options.precision)
        if needed is not None and needed not in able:
            return f"this CPU has no instructions for {options.precision}, and OpenVINO would compute in fp32"
        return None

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Read the model; it is compiled in `allocate`, for the shapes given there."""
        library = self._library()
        takes = "the path of an .onnx or .xml file, bytes of ONNX, an onnx.ModelProto, or an openvino.Model"
        source = onnx_source(model, self.name, options.precision, takes, also=(library.Model,))
        return OpenVinoSession(library, model.name, source, options)

    def _library(self) -> Any:
        """Import `openvino`, and keep `openvino_telemetry` out of this process; OpenVINO does not need it.

        It reports each import and conversion to a server, unless the user's home opts out, and forks this process
        for it, in the middle of a measurement.
        """
        if "openvino" not in sys.modules:
            sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # an import of it fails
        return imported("openvino", self.install)


class OpenVinoSession(Session):
    """An infer request with tensors in arrays that are allocated once."""

    def __init__(self, library: Any, name: str, source: Any, options: BackendOptions) -> None:
        self._library, self._options, self._name = library, options, name
        self._core = library.Core()
        if options.cache_dir is not None:
            self._core.set_property({"CACHE_DIR": str(options.cache_dir)})
        with translated(f"{name} cannot be loaded"):
            self._model: Any = source if isinstance(source, library.Model) else self._core.read_model(source)
        super().__init__(map(_spec, self._model.inputs), map(_spec, self._model.outputs))
        self._weights = _weights(self._model)
        is_quantized = "quantised" in self._weights
        if is_quantized != (options.precision == "int8"):
            own = "int8" if is_quantized else "no int8: it is not quantised"
            raise BackendError(f"{name} is a model in {own}, and OpenVINO quantises none; request its own precision")
        self._compiled: Any = None
        self._programs: Counter[str] = Counter()
        self._request: Any = None
        self._is_running = False

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        """Compile for these shapes, and set the tensors of the request."""
        with self.building():
            self._compiled = self._made(shapes)
            self._programs["found" if self._compiled.get_property("LOADED_FROM_CACHE") else "made"] += 1
        self._host = {spec.name: aligned_zeros(shapes[spec.name], spec.dtype) for spec in self.inputs}
        self._request = self._requested(self._compiled)
        for spec, port in zip(self.outputs, self._compiled.outputs, strict=True):
            if not port.get_partial_shape().is_dynamic:
                self._host[spec.name] = aligned_zeros(tuple(port.get_shape()), spec.dtype)
                self._request.set_tensor(port, self._library.Tensor(self._host[spec.name], shared_memory=True))

    def compiled_programs(self) -> tuple[int, int]:
        """Of this session."""
        return self._programs["found"], self._programs["made"]

    def _execute(self) -> None:
        self.synchronize()
        self._request.start_async()
        self._is_running = True

    def synchronize(self) -> None:
        """Wait for the request."""
        if self._is_running:
            self._is_running = False
            with translated("the model could not be run"):
                self._request.wait()

    def _results(self) -> Sequence[Any]:
        self.synchronize()
        return [self._request.get_output_tensor(index).data for index in range(len(self.outputs))]

    def settings(self) -> dict[str, str]:
        """What OpenVINO set for this model, once it is compiled, and the dtype of the weights in the file."""
        settings = {"dtypes of weights": ", ".join(f"{kind} {count}" for kind, count in self._weights.items())}
        if self._compiled is not None:
            names = ("PERFORMANCE_HINT", "INFERENCE_PRECISION_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
            settings |= {name: _text(self._compiled.get_property(name)) for name in names}
        return settings

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """From OpenVINO's counters, of a second compilation with them; layers as they are after fusion."""
        self.synchronize()
        with translated(f"{self._name} could not be compiled"):
            request = self._requested(self._made(self._shapes, counted=True))
        request.infer()
        first = _milliseconds(request)
        for _ in range(rounds):
            request.infer()
        last = _milliseconds(request)
        return [LayerTime(name, _mean_after_first(first.get(name, 0.0), mean, rounds)) for name, mean in last.items()]

    def _free(self) -> None:
        self._request = self._compiled = None

    def _release(self) -> None:
        self._model = None

    def _made(self, shapes: Mapping[str, Shape], counted: bool = False) -> Any:
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


def _weights(model: Any) -> Counter[str]:
    """Element type -> number of elements of the model's constants; `quantised` -> number of quantising operators."""
    found: Counter[str] = Counter()
    for operation in model.get_ops():
        kind = operation.get_type_name()
        if kind == "FakeQuantize":
            found["quantised"] += 1
        elif kind == "Constant":
            element = operation.get_element_type()
            if element.is_real() or element.bitwidth <= 8:
                found[element.get_type_name()] += int(np.prod(list(operation.get_output_shape(0))))
    return found


def _milliseconds(request: Any) -> dict[str, float]:
    """Of each layer that was executed, by name."""
    found: defaultdict[str, float] = defaultdict(float)
    for node in request.profiling_info:
        if node.status == node.Status.EXECUTED:
            found[node.node_name] += node.real_time.total_seconds() * 1000
    return found


def _mean_after_first(first: float, mean: float, rounds: int) -> float:
    """Mean without the first inference, of counters that are means over all inferences of a request."""
    return max(0.0, (mean * (rounds + 1) - first) / rounds)


def _text(value: Any) -> str:
    """A property as OpenVINO writes it: `f32`, `LATENCY`, `2`."""
    return str(getattr(value, "get_type_name", lambda: getattr(value, "name", value))())
