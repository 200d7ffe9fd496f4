"""The smallest model that shows a backend's mistake, in every framework: two inputs, two outputs, an open dimension.

hidden = relu(features @ first + shift)        logits = hidden @ second
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends import FactoryModel
from perfharness.model.bench import TensorSpec

FEATURES, HIDDEN, CLASSES = 6, 8, 4
INPUTS = (
    TensorSpec(name="features", shape=(None, FEATURES), dtype="float32"),
    TensorSpec(name="shift", shape=(None, 1), dtype="float32"),
)
OUTPUTS = ("hidden", "logits")
Array = npt.NDArray[np.float32]


def weights() -> tuple[Array, Array]:
    random = np.random.default_rng(5)
    first = random.uniform(-1, 1, (FEATURES, HIDDEN)).astype(np.float32)
    return first, random.uniform(-1, 1, (HIDDEN, CLASSES)).astype(np.float32)


def reference(features: Array, shift: Array) -> dict[str, Array]:
    first, second = weights()
    hidden = np.maximum(features @ first + shift, 0)
    return {"hidden": hidden, "logits": hidden @ second}


def create(backend: str, precision: str) -> Any:
    made = {
        "torch": torch_model,
        "onnxruntime": onnx_model,
        "tensorrt": onnx_model,
        "tensorflow": tensorflow_model,
        "keras": keras_model,
    }
    return made[backend](precision)


def torch_model(precision: str) -> FactoryModel:
    del precision
    import torch

    class Tiny(torch.nn.Module):  # type: ignore[misc]  # torch is not looked into
        def __init__(self) -> None:
            super().__init__()
            first, second = weights()
            self.first = torch.nn.Linear(FEATURES, HIDDEN, bias=False)
            self.second = torch.nn.Linear(HIDDEN, CLASSES, bias=False)
            with torch.no_grad():
                self.first.weight.copy_(torch.from_numpy(first.T))
                self.second.weight.copy_(torch.from_numpy(second.T))

        def forward(self, features: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = torch.relu(self.first(features) + shift)
            return hidden, self.second(hidden)

    return FactoryModel(Tiny(), INPUTS, OUTPUTS)


def onnx_model(precision: str) -> bytes:
    """In fp32, or with all tensors in fp16."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kind, dtype = (TensorProto.FLOAT16, np.float16) if precision == "fp16" else (TensorProto.FLOAT, np.float32)
    first, second = (each.astype(dtype) for each in weights())
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["features", "first"], ["product"], name="first_product"),
            helper.make_node("Add", ["product", "shift"], ["sum"], name="shifted"),
            helper.make_node("Relu", ["sum"], ["hidden"], name="rectified"),
            helper.make_node("MatMul", ["hidden", "second"], ["logits"], name="second_product"),
        ],
        "tiny",
        [
            helper.make_tensor_value_info("features", kind, ["batch", FEATURES]),
            helper.make_tensor_value_info("shift", kind, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info("hidden", kind, ["batch", HIDDEN]),
            helper.make_tensor_value_info("logits", kind, ["batch", CLASSES]),
        ],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def quantised_model() -> bytes:
    """y = dequantised(quantised(x)) in steps of 0.1, of shape (n, 2)."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        ],
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.float32(0.1), "scale"), numpy_helper.from_array(np.zeros((), np.int8), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data: bytes = model.SerializeToString()
    return data


def tensorflow_model(precision: str) -> FactoryModel:
    """With weights in the precision asked for."""
    import tensorflow as tf

    dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(precision, "float32")

    class Tiny(tf.Module):  # type: ignore[misc]  # tensorflow is not looked into
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (tf.Variable(tf.cast(each, dtype)) for each in weights())

        @tf.function(  # type: ignore[untyped-decorator]  # nor its decorators
            input_signature=[tf.TensorSpec(spec.shape, spec.dtype, spec.name) for spec in INPUTS]
        )
        def __call__(self, features: Any, shift: Any) -> dict[str, Any]:
            hidden = tf.nn.relu(tf.cast(features, dtype) @ self.first + tf.cast(shift, dtype))
            return {"hidden": hidden, "logits": hidden @ self.second}

    return FactoryModel(Tiny(), INPUTS, OUTPUTS)


def keras_model(precision: str) -> Any:
    """Describes itself: no FactoryModel."""
    del precision  # every layer gets its dtype policy from the session
    import keras

    features, shift = (keras.Input(spec.shape[1:], name=spec.name) for spec in INPUTS)
    first = keras.layers.Dense(HIDDEN, use_bias=False, name="first")
    second = keras.layers.Dense(CLASSES, use_bias=False, name="logits")
    hidden = keras.layers.ReLU(name="hidden")(keras.layers.Add()([first(features), shift]))
    model = keras.Model([features, shift], [hidden, second(hidden)])
    for layer, weight in zip((first, second), weights(), strict=True):
        layer.set_weights([weight])
    return model
