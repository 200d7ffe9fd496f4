"""MobileNetV3-Large in Keras's layers, for any of its backends, and as a .keras file.

KERAS_BACKEND=tensorflow python -m samples.mobilenet_v3.keras_model mobilenet_v3.keras
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import keras
from keras import layers

from samples.mobilenet_v3.reference import Weights
from samples.mobilenet_v3.structure import (
    BLOCKS,
    CLASSES,
    EPSILON,
    HEAD,
    HIDDEN,
    IMAGE_SIZE,
    INPUT,
    NORM,
    OUTPUT,
    STEM,
    Block,
)
from samples.mobilenet_v3.weights import channels_last
from samples.mobilenet_v3.weights import weights as all_weights

ACTIVATIONS = {"relu": "relu", "hardswish": "hard_swish"}
FORMAT = {"data_format": "channels_last"}
EMPTY = {"kernel_initializer": "zeros"}
"""Weights are loaded: random ones would be compiled and drawn first, which takes long."""


def build(weights: Weights, precision: str) -> keras.Model:
    """In fp32: the backend brings it into the precision."""
    del precision
    model = mobilenet_v3_large()
    load(model, weights)
    return model


def mobilenet_v3_large() -> keras.Model:
    """From images (batch, 3, height, width) to logits (batch, 1000)."""
    images = keras.Input((3, IMAGE_SIZE, IMAGE_SIZE), name=INPUT)
    x = layers.Permute((2, 3, 1), name="channels_last")(images)
    x = _activation("hardswish", _convolution("stem", x, STEM, 3, stride=2), "stem")
    for block in BLOCKS:
        x = _inverted_residual(block, x)
    x = _activation("hardswish", _convolution("head", x, HEAD, 1), "head")
    x = layers.GlobalAveragePooling2D(name="pool", **FORMAT)(x)
    x = layers.Dense(HIDDEN, "hard_swish", name="hidden", **EMPTY)(x)
    return keras.Model(images, layers.Dense(CLASSES, name=OUTPUT, **EMPTY)(x), name="mobilenet_v3_large")


def load(model: keras.Model, weights: Weights) -> None:
    """Fill in the weights by the layers' names, in which "_" stands for "."; none may be left over."""
    left = set(weights)
    for layer in model.layers:
        if not layer.weights:
            continue
        name = {OUTPUT: "classifier"}.get(layer.name, layer.name.replace("_", "."))
        parts = NORM if isinstance(layer, layers.BatchNormalization) else ("weight", "bias")
        values = []
        for part in parts[: len(layer.weights)]:
            left.remove(f"{name}.{part}")
            array = weights[f"{name}.{part}"]
            values.append(channels_last(array) if part == "weight" else array)
        layer.set_weights(values)
    if left:
        raise ValueError(f"no layer has the weights {sorted(left)[0]}")


def _inverted_residual(block: Block, x: Any) -> Any:
    name = block.name
    y = x
    if block.expand is not None:
        y = _activation(block.activation, _convolution(f"{name}_expand", y, block.expanded, 1), f"{name}_expand")
    y = _padded(f"{name}_depthwise", y, block.kernel, block.stride)
    y = layers.DepthwiseConv2D(
        block.kernel,
        block.stride,
        "same" if block.stride == 1 else "valid",
        use_bias=False,
        name=f"{name}_depthwise",
        depthwise_initializer="zeros",
        **FORMAT,
    )(y)
    y = _activation(block.activation, _normed(f"{name}_depthwise", y), f"{name}_depthwise")
    if block.squeeze is not None:
        mean = layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}_mean", **FORMAT)(y)
        small = layers.Conv2D(block.squeeze, 1, activation="relu", name=f"{name}_squeeze", **FORMAT, **EMPTY)(mean)
        large = layers.Conv2D(block.expanded, 1, activation="hard_sigmoid", name=f"{name}_excite", **FORMAT, **EMPTY)(
            small
        )
        y = layers.Multiply(name=f"{name}_excited")([y, large])
    y = _convolution(f"{name}_project", y, block.channels_out, 1)
    return layers.Add(name=f"{name}_sum")([x, y]) if block.residual else y


def _convolution(name: str, x: Any, out: int, kernel: int, stride: int = 1) -> Any:
    x = _padded(name, x, kernel, stride)
    padding = "same" if stride == 1 else "valid"
    return _normed(name, layers.Conv2D(out, kernel, stride, padding, use_bias=False, name=name, **FORMAT, **EMPTY)(x))


def _padded(name: str, x: Any, kernel: int, stride: int) -> Any:
    """With the padding that "same" would put elsewhere."""
    return x if stride == 1 else layers.ZeroPadding2D((kernel - 1) // 2, name=f"{name}_pad", **FORMAT)(x)


def _normed(name: str, x: Any) -> Any:
    return layers.BatchNormalization(epsilon=EPSILON, name=f"{name}_norm")(x)


def _activation(kind: str, x: Any, name: str) -> Any:
    return layers.Activation(ACTIVATIONS[kind], name=f"{name}_activation")(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="ending in .keras")
    arguments = parser.parse_args()
    build(all_weights(), "fp32").save(arguments.file)
    print(arguments.file)


if __name__ == "__main__":
    main()
