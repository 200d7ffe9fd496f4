"""MobileNetV3-Large for every backend: `perfharness bench --model samples.mobilenet_v3.factory:create ...`.

Adding a framework: a module next to this one with a function `build(weights, precision)`, and its line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perfharness.errors import BackendError
from samples.mobilenet_v3.reference import Weights
from samples.mobilenet_v3.weights import pruned, weights

BUILDERS = {
    "keras": "samples.mobilenet_v3.keras_model",
    "onnxruntime": "samples.mobilenet_v3.onnx_model",
    "tensorflow": "samples.mobilenet_v3.tensorflow_model",
    "tensorrt": "samples.mobilenet_v3.onnx_model",
    "torch": "samples.mobilenet_v3.torch_model",
}
"""Backend -> the module that builds for it."""


def create(backend: str, precision: str) -> Any:
    """The model with the one set of weights, as this backend takes it."""
    return build(backend, precision, weights())


def create_pruned(backend: str, precision: str) -> Any:
    """The same after global magnitude pruning; int8 is the backend's, on top of it."""
    return build(backend, precision, pruned(weights()))


def build(backend: str, precision: str, given: Weights) -> Any:
    if backend not in BUILDERS:
        raise BackendError(f"MobileNetV3 is not written for {backend}; it is for {', '.join(sorted(BUILDERS))}")
    return import_module(BUILDERS[backend]).build(given, precision)
