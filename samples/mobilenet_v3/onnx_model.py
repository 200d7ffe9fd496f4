"""MobileNetV3-Large as ONNX, written node by node: no framework is needed, and the names are ours.

    python -m samples.mobilenet_v3.onnx_model mobilenet_v3.onnx [--precision fp16]

Opset 17, an open batch dimension. In fp16 weights and activations are fp16 between two casts, so that input and output
stay float32 as in the other frameworks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from samples.mobilenet_v3.reference import Array, Weights
from samples.mobilenet_v3.structure import BLOCKS, CLASSES, EPSILON, IMAGE_SIZE, INPUT, NORM, OUTPUT
from samples.mobilenet_v3.weights import weights as all_weights

OPSET, IR_VERSION = 17, 9


def build(weights: Weights, precision: str) -> bytes:
    """The checked file's bytes: in fp16 where that is asked for, else in fp32."""
    graph = _Graph(weights, half=precision == "fp16")
    out = graph.network(INPUT)
    shape = ["batch", 3, IMAGE_SIZE, IMAGE_SIZE]
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "mobilenet_v3_large",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["batch", CLASSES])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="perfharness",
    )
    onnx.checker.check_model(made, full_check=True)
    data: bytes = made.SerializeToString()
    return data


class _Graph:
    """Nodes as they are added; each is called as its output."""

    def __init__(self, weights: Weights, half: bool) -> None:
        self._given, self._half = weights, half
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def network(self, image: str) -> str:
        x = self.add("Cast", [image], "image.half", to=TensorProto.FLOAT16) if self._half else image
        x = self.activation("hardswish", self.convolution("stem", x, stride=2))
        for block in BLOCKS:
            name = block.name
            y = x
            if block.expand is not None:
                y = self.activation(block.activation, self.convolution(f"{name}.expand", y))
            y = self.convolution(f"{name}.depthwise", y, block.stride, groups=block.expanded)
            y = self.activation(block.activation, y)
            if block.squeeze is not None:
                y = self.squeeze_and_excite(name, y)
            y = self.convolution(f"{name}.project", y)
            x = self.add("Add", [x, y], f"{name}.sum") if block.residual else y
        x = self.activation("hardswish", self.convolution("head", x))
        x = self.add("Flatten", [self.add("GlobalAveragePool", [x], "pool")], "flatten")
        x = self.activation("hardswish", self.linear("hidden", x, "hidden.out"))
        if not self._half:
            return self.linear("classifier", x, OUTPUT)
        return self.add("Cast", [self.linear("classifier", x, "logits.half")], OUTPUT, to=TensorProto.FLOAT)

    def convolution(self, name: str, x: str, stride: int = 1, groups: int = 1) -> str:
        kernel = self._given[f"{name}.weight"].shape[2]
        pad = (kernel - 1) // 2
        y = self.add(
            "Conv",
            [x, self.weight(f"{name}.weight")],
            f"{name}.conv",
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=groups,
        )
        norm = [self.weight(f"{name}.norm.{part}") for part in NORM]
        return self.add("BatchNormalization", [y, *norm], f"{name}.normed", epsilon=EPSILON)

    def squeeze_and_excite(self, name: str, x: str) -> str:
        y = self.add("GlobalAveragePool", [x], f"{name}.mean")
        for layer in ("squeeze", "excite"):
            given = [self.weight(f"{name}.{layer}.{part}") for part in ("weight", "bias")]
            y = self.add("Conv", [y, *given], f"{name}.{layer}", kernel_shape=[1, 1])
            if layer == "squeeze":
                y = self.activation("relu", y)
        y = self.add("HardSigmoid", [y], f"{name}.factor", alpha=1 / 6, beta=0.5)
        return self.add("Mul", [x, y], f"{name}.excited")

    def linear(self, name: str, x: str, out: str) -> str:
        given = [self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.add("Gemm", [x, *given], out, transB=1)

    def activation(self, kind: str, x: str) -> str:
        return self.add({"relu": "Relu", "hardswish": "HardSwish"}[kind], [x], f"{x}.{kind}")

    def weight(self, name: str) -> str:
        array: Array = self._given[name]
        self.weights.append(numpy_helper.from_array(array.astype(np.float16) if self._half else array, name))
        return name

    def add(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [out], name=out, **attributes))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp32")
    arguments = parser.parse_args()
    arguments.onnx.write_bytes(build(all_weights(), arguments.precision))
    print(arguments.onnx)


if __name__ == "__main__":
    main()
