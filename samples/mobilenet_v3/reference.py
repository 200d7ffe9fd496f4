"""MobileNetV3-Large in NumPy: slow, and short enough to be checked by eye; frameworks' outputs are held against it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from samples.mobilenet_v3.structure import BLOCKS, EPSILON

Array = npt.NDArray[Any]
Weights = dict[str, Array]


def forward(weights: Weights, images: Array) -> Array:
    """Logits (batch, classes) of images (batch, 3, height, width)."""

    def convolved(name: str, x: Array, stride: int = 1) -> Array:
        return _normalised(weights, name, convolution(x, weights[f"{name}.weight"], stride))

    x = hard_swish(convolved("stem", images, 2))
    for block in BLOCKS:
        name, activate = block.name, {"relu": relu, "hardswish": hard_swish}[block.activation]
        y = x if block.expand is None else activate(convolved(f"{name}.expand", x))
        y = _normalised(weights, f"{name}.depthwise", depthwise(y, weights[f"{name}.depthwise.weight"], block.stride))
        y = activate(y)
        if block.squeeze is not None:
            mean = y.mean(axis=(2, 3), keepdims=True)
            small = relu(convolution(mean, weights[f"{name}.squeeze.weight"]) + _bias(weights, f"{name}.squeeze"))
            large = convolution(small, weights[f"{name}.excite.weight"]) + _bias(weights, f"{name}.excite")
            y = y * hard_sigmoid(large)
        y = convolved(f"{name}.project", y)
        x = x + y if block.residual else y
    x = hard_swish(convolved("head", x)).mean(axis=(2, 3))
    x = hard_swish(x @ weights["hidden.weight"].T + weights["hidden.bias"])
    logits: Array = x @ weights["classifier.weight"].T + weights["classifier.bias"]
    return logits


def convolution(x: Array, weight: Array, stride: int = 1) -> Array:
    """Convolution of (batch, in, height, width) with (out, in, kernel, kernel)."""
    if weight.shape[2:] == (1, 1) and stride == 1:
        flat = x.reshape(*x.shape[:2], -1)
        product: Array = weight[:, :, 0, 0] @ flat
        return product.reshape(x.shape[0], weight.shape[0], *x.shape[2:])
    return _added(
        np.einsum("oi,nihw->nohw", weight[:, :, row, column], part, optimize=True)
        for row, column, part in _shifted(x, weight.shape[2], stride)
    )


def depthwise(x: Array, weight: Array, stride: int) -> Array:
    """Depthwise convolution of (batch, channels, height, width) with (channels, 1, kernel, kernel)."""
    return _added(
        weight[:, 0, row, column, None, None] * part for row, column, part in _shifted(x, weight.shape[2], stride)
    )


def _added(parts: Iterator[Array]) -> Array:
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def _shifted(x: Array, kernel: int, stride: int) -> list[tuple[int, int, Array]]:
    """For each place in the kernel, what of the padded image it is multiplied with."""
    pad = (kernel - 1) // 2
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    return [
        (row, column, padded[:, :, row : row + stride * height : stride, column : column + stride * width : stride])
        for row in range(kernel)
        for column in range(kernel)
    ]


def _normalised(weights: Weights, name: str, x: Array) -> Array:
    gamma, beta, mean, variance = (
        weights[f"{name}.norm.{part}"][:, None, None] for part in ("gamma", "beta", "mean", "variance")
    )
    y: Array = (x - mean) * (gamma / np.sqrt(variance + np.float32(EPSILON))) + beta
    return y


def _bias(weights: Weights, name: str) -> Array:
    return weights[f"{name}.bias"][:, None, None]


def relu(x: Array) -> Array:
    active: Array = np.maximum(x, 0)
    return active


def hard_sigmoid(x: Array) -> Array:
    gate: Array = np.clip(x + 3, 0, 6) / np.float32(6)
    return gate


def hard_swish(x: Array) -> Array:
    return x * hard_sigmoid(x)
