"""Quantise ONNX models to int8: QuantizeLinear and DequantizeLinear around operators, calibrated on samples."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfharness.backends.arrays import read_arrays
from perfharness.backends.base import imported
from perfharness.backends.session import translated
from perfharness.distribution import install_command
from perfharness.errors import BackendError


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

    Args:
        calibration: `.npz` with an array per input, whose first dimension counts samples.
        for_tensorrt: respect TensorRT's restrictions.

    Raises `BackendError` if samples and model do not match.
    """
    quantization = imported("onnxruntime.quantization", install_command("onnxruntime"))
    shapes = imported("onnxruntime.quantization.shape_inference", install_command("onnxruntime"))
    onnx = imported("onnx", install_command("onnxruntime"))
    with translated("the model could not be quantised"), tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
        model = onnx.load_model_from_string(source) if isinstance(source, bytes) else onnx.load_model(source)
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = [one for one in model.graph.input if one.name not in weights]
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
