"""MobileNetV3-Large in plain JAX: functions of a dictionary of arrays."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from perfharness.backends import FactoryModel
from perfharness.model.bench import TensorSpec
from samples.mobilenet_v3 import channels_last, reference
from samples.mobilenet_v3.reference import Weights
from samples.mobilenet_v3.structure import BLOCKS, EPSILON, IMAGE_SIZE, INPUT, OUTPUT, Block

Parameters = dict[str, Array]


def build(weights: Weights, precision: str) -> FactoryModel:
    """In fp32: the backend brings the parameters into the precision."""
    del precision
    shape = (None, 3, IMAGE_SIZE, IMAGE_SIZE)
    spec = TensorSpec(name=INPUT, shape=shape, dtype="float32")
    return FactoryModel((mobilenet_v3_large, parameters(weights)), (spec,), (OUTPUT,))


def parameters(weights: Weights) -> dict[str, reference.Array]:
    """Kernels with channels last; a batch norm as the scale and the shift that it comes to."""
    made = {}
    for name, array in weights.items():
        owner, _, part = name.rpartition(".")
        if part == "weight":
            made[name] = (channels_last.kernel if array.ndim == 4 else channels_last.matrix)(weights, owner)
        elif part == "bias":
            made[name] = array
        elif part == "gamma":
            scale = array / np.sqrt(weights[f"{owner}.variance"] + np.float32(EPSILON))
            made[f"{owner}.scale"] = scale
            made[f"{owner}.shift"] = weights[f"{owner}.beta"] - weights[f"{owner}.mean"] * scale
    return made


def mobilenet_v3_large(p: Parameters, images: Array) -> Array:
    """From images (batch, 3, height, width) to logits (batch, 1000)."""
    x = jnp.transpose(images, (0, 2, 3, 1))
    x = jax.nn.hard_swish(_normed(p, "stem", _convolution(p, "stem", x, stride=2)))
    for block in BLOCKS:
        x = _inverted_residual(p, block, x)
    x = jax.nn.hard_swish(_normed(p, "head", _convolution(p, "head", x)))
    x = x.mean(axis=(1, 2))
    x = jax.nn.hard_swish(x @ p["hidden.weight"] + p["hidden.bias"])
    return x @ p["classifier.weight"] + p["classifier.bias"]


def _inverted_residual(p: Parameters, block: Block, x: Array) -> Array:
    name = block.name
    activate: Callable[[Array], Array] = {"relu": jax.nn.relu, "hardswish": jax.nn.hard_swish}[block.activation]
    y = x
    if block.expand is not None:
        y = activate(_normed(p, f"{name}.expand", _convolution(p, f"{name}.expand", y)))
    y = _convolution(p, f"{name}.depthwise", y, block.stride, groups=block.expanded)
    y = activate(_normed(p, f"{name}.depthwise", y))
    if block.squeeze is not None:
        mean = y.mean(axis=(1, 2), keepdims=True)
        small = jax.nn.relu(_convolution(p, f"{name}.squeeze", mean) + p[f"{name}.squeeze.bias"])
        large = _convolution(p, f"{name}.excite", small) + p[f"{name}.excite.bias"]
        y = y * jax.nn.hard_sigmoid(large)
    y = _normed(p, f"{name}.project", _convolution(p, f"{name}.project", y))
    return x + y if block.residual else y


def _convolution(p: Parameters, name: str, x: Array, stride: int = 1, groups: int = 1) -> Array:
    kernel = p[f"{name}.weight"]
    pad = (kernel.shape[0] - 1) // 2
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _normed(p: Parameters, name: str, x: Array) -> Array:
    return x * p[f"{name}.norm.scale"] + p[f"{name}.norm.shift"]
