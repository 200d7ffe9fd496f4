"""ONNX models: from files or functions, their precision, and their weight files."""

from __future__ import annotations

from collections import Counter
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path

from perfharness.backends.base import BackendOptions
from perfharness.backends.models import ModelSource, call_factory
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "Integer", "QAttention", "QGemm")
"""Parts of operator names in quantised models."""


def onnx_source(model: ModelSource, backend: str, options: BackendOptions, takes: str) -> Path | bytes:
    """Path or bytes of a model from its file or function, quantised if calibration samples are given.

    Args:
        backend: for which a function is called.
        takes: return values allowed for the function, for the message.
    """
    if options.precision != "int8" or options.calibration is None:
        return _given(model, backend, options.precision, takes)
    found = _given(model, backend, "fp32", takes)
    if (isinstance(found, Path) and found.suffix != ".onnx") or model_precision(found) != "fp32":
        return found
    from perfharness.backends.quantise import quantised

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
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            model = onnx.load_model(source, load_external_data=False)
    except Exception as error:
        raise BackendError(f"not an ONNX model: {type(error).__name__}: {error}") from error
    graph = model.graph
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

        graph = onnx.load_model(path, load_external_data=False).graph
    except Exception:
        return None
    if not graph.node:  # also the result for text and empty files
        return None
    weights = {tensor.name for tensor in graph.initializer}
    found = []
    for value in graph.input:
        if value.name in weights:
            continue
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
    if not _holds(path, b"location"):  # the key of such files; avoids seconds of importing onnx and parsing
        return []
    import onnx

    model = onnx.load_model(str(path), load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [path.parent / name for name in sorted(names)]


def _holds(path: Path, text: bytes) -> bool:
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(text) >= 0
