"""ONNX models: from files or functions, their precision, their weight files, and quantising to int8."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfharness.backends.arrays import read_arrays
from perfharness.backends.base import BackendOptions, imported
from perfharness.backends.models import ModelSource, call_factory
from perfharness.backends.session import translated
from perfharness.distribution import install_command
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "Integer", "QAttention", "QGemm")
"""Parts of operator names in quantised models."""


def onnx_source(model: ModelSource, backend: str, options: BackendOptions, takes: str) -> Path | bytes:
    """Path or bytes of a model from its file or function, quantised if calibration samples are given.

    `takes` names the return values allowed for the function.
    """
    if options.precision != "int8" or options.calibration is None:
        return _given(model, backend, options.precision, takes)
    found = _given(model, backend, "fp32", takes)
    if (isinstance(found, Path) and found.suffix != ".onnx") or model_precision(found) != "fp32":
        return found
    return quantised(found, options.calibration, for_tensorrt="tensorrt" in (backend, options.mode))


def _given(model: ModelSource, backend: str, precision: Precision, takes: str) -> Path | bytes:
    if model.path is not None:
        return model.path
    made = call_factory(model, backend, precision)
    if isinstance(made, str):
        return Path(made)
    if hasattr(made, "SerializeToString"):
        made = made.SerializeToString()
    if isinstance(made, bytes | Path):
        return made
    raise BackendError(f"{model.factory} returned a {type(made).__name__} for {backend}; it must return {takes}")


def model_precision(source: str | Path | bytes) -> Precision | None:
    """Precision of a model, from its path or bytes.

    int8 if it has operators of quantised models, else that of most elements of its weights (of inputs and outputs if it
    has no weights); None without floating-point values. Raises `BackendError`.
    """
    import onnx

    try:
        graph = _loaded(source, load_external_data=False).graph
    except Exception as error:
        raise BackendError(f"not an ONNX model: {type(error).__name__}: {error}") from error
    if any(sign in node.op_type for node in graph.node for sign in QUANTIZED):
        return "int8"
    kinds: dict[int, Precision] = {
        onnx.TensorProto.FLOAT: "fp32",
        onnx.TensorProto.FLOAT16: "fp16",
        onnx.TensorProto.BFLOAT16: "bf16",
    }
    elements: Counter[int] = Counter()
    for tensor in graph.initializer:
        elements[tensor.data_type] += prod(tensor.dims)
    if not kinds.keys() & elements.keys():
        elements.update(value.type.tensor_type.elem_type for value in (*graph.input, *graph.output))
    return next((kinds[kind] for kind, _ in elements.most_common() if kind in kinds), None)


def onnx_inputs(path: Path) -> list[TensorSpec] | None:
    """Inputs of a file except weights; None if onnx is not installed or cannot read it."""
    try:
        import onnx

        graph = _loaded(path, load_external_data=False).graph
    except Exception:
        return None
    if not graph.node:  # also the result for text and empty files
        return None
    found = []
    for value in _inputs(graph):
        kind = value.type.tensor_type
        shape = tuple(one.dim_value if one.dim_value > 0 else None for one in kind.shape.dim)
        try:
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        except (KeyError, TypeError):
            return None
        found.append(TensorSpec(name=value.name, shape=shape, dtype=dtype))
    return found


def onnx_weight_files(path: Path) -> list[Path]:
    """Weight files next to an ONNX file."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if content.find(b"location") < 0:  # the key of such files; avoids seconds of importing onnx and parsing
            return []
    import onnx

    names = {
        entry.value
        for tensor in _loaded(path, load_external_data=False).graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [path.parent / name for name in sorted(names)]


def _loaded(source: str | Path | bytes, **options: bool) -> Any:
    import onnx

    return onnx.load_model_from_string(source) if isinstance(source, bytes) else onnx.load_model(source, **options)


def _inputs(graph: Any) -> list[Any]:
    """Inputs of a graph except weights."""
    weights = {tensor.name for tensor in graph.initializer}
    return [one for one in graph.input if one.name not in weights]


# ---- quantising: QuantizeLinear and DequantizeLinear around operators, calibrated on samples ----


def read_calibration(path: Path) -> dict[str, Any]:
    """Arrays of samples by input name, one sample per row. Raises `BackendError`."""
    found = read_arrays(path, BackendError)
    counts = {len(array) if array.ndim else 0 for array in found.values()}
    if len(counts) != 1 or not counts - {0}:
        raise BackendError(f"{path} must have an array for each input, all with the same number of samples")
    return found


TENSORRT_OPTIONS = {"ActivationSymmetric": True, "QuantizeBias": False}
"""TensorRT requires zero points of 0, and does not support biases in int32."""


def quantised(source: Path | bytes, calibration: Path, *, for_tensorrt: bool) -> bytes:
    """Quantise a model to int8: activations and weights (per channel), by minimum and maximum of the samples.

    Raises `BackendError` if samples and model do not match.
    """
    quantization = imported("onnxruntime.quantization", install_command("onnxruntime"))
    shapes = imported("onnxruntime.quantization.shape_inference", install_command("onnxruntime"))
    with translated("the model could not be quantised"), tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
        model = _loaded(source)
        inputs = _inputs(model.graph)
        samples = read_calibration(calibration)
        if missing := sorted({one.name for one in inputs} ^ set(samples)):
            raise BackendError(f"{calibration} and the model differ in the input {missing[0]!r}")
        sizes = {one.type.tensor_type.shape.dim[0].dim_value for one in inputs if one.type.tensor_type.shape.dim}
        batches = _batches(samples, max([1, *sizes]))
        reader = SimpleNamespace(get_next=lambda: next(batches, None))
        prepared, result = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
        logger = logging.getLogger()
        before = logger.level
        logger.setLevel(logging.ERROR)  # hides advice about shape inference
        try:
            shapes.quant_pre_process(model, prepared, skip_symbolic_shape=True)  # folds batch norms, like runtimes
            extra = TENSORRT_OPTIONS if for_tensorrt else {}
            quantization.quantize_static(prepared, result, reader, per_channel=True, extra_options=extra)
        finally:
            logger.setLevel(before)
        return result.read_bytes()


def _batches(samples: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Batches of the model's own size, without a remainder. Raises `BackendError` for too few samples."""
    count = len(next(iter(samples.values())))
    if count < size:
        raise BackendError(f"the model needs batches of {size}, but there are only {count} calibration samples")
    for begin in range(0, count - size + 1, size):
        yield {name: array[begin : begin + size] for name, array in samples.items()}
