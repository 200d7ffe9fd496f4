"""The precision in which an ONNX model computes, read from the file."""

from __future__ import annotations

from math import prod

from perfharness.errors import BackendError
from perfharness.model.bench import Precision

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "Integer", "QAttention", "QGemm")
"""Operators of quantised models have one of these in their names."""


def model_precision(source: str | bytes) -> Precision | None:
    """Precision of a model, from its path or bytes.

    int8 where it has operators of quantised models, else that of most of its weights' elements (those of inputs and
    outputs where it has no weights); None where there are no floating-point values. Raises `BackendError`.
    """
    import onnx

    try:
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            model = onnx.load_model(source, load_external_data=False)
    except Exception as error:
        raise BackendError(f"this is no ONNX model: {type(error).__name__}: {error}") from error
    graph = model.graph
    if any(sign in node.op_type for node in graph.node for sign in QUANTIZED):
        return "int8"
    kinds: dict[int, Precision] = {
        onnx.TensorProto.FLOAT: "fp32",
        onnx.TensorProto.FLOAT16: "fp16",
        onnx.TensorProto.BFLOAT16: "bf16",
    }
    elements: dict[Precision, int] = {}
    for tensor in graph.initializer:
        if tensor.data_type in kinds:
            weights: Precision = kinds[tensor.data_type]
            elements[weights] = elements.get(weights, 0) + prod(tensor.dims)
    for value in () if elements else (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in kinds:
            numbers: Precision = kinds[value.type.tensor_type.elem_type]
            elements[numbers] = elements.get(numbers, 0) + 1
    return max(elements.items(), key=lambda each: each[1])[0] if elements else None
