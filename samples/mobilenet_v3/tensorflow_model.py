"""MobileNetV3-Large in TensorFlow's own operations, and as a SavedModel.

python -m samples.mobilenet_v3.tensorflow_model FOLDER [--precision fp16]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tensorflow as tf

from perfharness.backends import FactoryModel
from perfharness.model.bench import TensorSpec
from samples.mobilenet_v3.reference import Weights
from samples.mobilenet_v3.structure import BLOCKS, EPSILON, IMAGE_SIZE, INPUT, NORM, OUTPUT, Block
from samples.mobilenet_v3.weights import channels_last
from samples.mobilenet_v3.weights import weights as all_weights

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
SHAPE = (None, 3, IMAGE_SIZE, IMAGE_SIZE)


def build(weights: Weights, precision: str) -> FactoryModel:
    """With weights in the precision asked for, between two casts."""
    spec = TensorSpec(name=INPUT, shape=SHAPE, dtype="float32")
    return FactoryModel(MobileNetV3Large(weights, DTYPES.get(precision, "float32")), (spec,), (OUTPUT,))


class MobileNetV3Large(tf.Module):
    """From images (batch, 3, height, width) to logits (batch, 1000)."""

    def __init__(self, weights: Weights, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype
        self.p: dict[str, tf.Variable] = {}
        for name, array in weights.items():
            part = name.rpartition(".")[2]
            value = tf.cast(channels_last(array) if part == "weight" else array, "float32" if part in NORM else dtype)
            self.p[name] = tf.Variable(value, trainable=False, name=name.replace(".", "_"))

    @tf.function(input_signature=[tf.TensorSpec(SHAPE, "float32", INPUT)])
    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        x = tf.transpose(tf.cast(images, self.dtype), (0, 2, 3, 1))
        x = hard_swish(self._normed("stem", self._convolution("stem", x, stride=2)))
        for block in BLOCKS:
            x = self._inverted_residual(block, x)
        x = hard_swish(self._normed("head", self._convolution("head", x)))
        x = tf.reduce_mean(x, (1, 2))
        x = hard_swish(x @ self.p["hidden.weight"] + self.p["hidden.bias"])
        return tf.cast(x @ self.p["classifier.weight"] + self.p["classifier.bias"], "float32")

    def _inverted_residual(self, block: Block, x: tf.Tensor) -> tf.Tensor:
        name, p = block.name, self.p
        activate = {"relu": tf.nn.relu, "hardswish": hard_swish}[block.activation]
        y = x
        if block.expand is not None:
            y = activate(self._normed(f"{name}.expand", self._convolution(f"{name}.expand", y)))
        y = activate(self._normed(f"{name}.depthwise", self._depthwise(f"{name}.depthwise", y, block.stride)))
        if block.squeeze is not None:
            small = tf.nn.relu(
                self._convolution(f"{name}.squeeze", tf.reduce_mean(y, (1, 2), keepdims=True))
                + p[f"{name}.squeeze.bias"]
            )
            y = y * hard_sigmoid(self._convolution(f"{name}.excite", small) + p[f"{name}.excite.bias"])
        y = self._normed(f"{name}.project", self._convolution(f"{name}.project", y))
        return x + y if block.residual else y

    def _convolution(self, name: str, x: tf.Tensor, stride: int = 1) -> tf.Tensor:
        kernel = self.p[f"{name}.weight"]
        x, padding = padded(x, kernel.shape[0], stride)
        return tf.nn.conv2d(x, kernel, stride, padding)

    def _depthwise(self, name: str, x: tf.Tensor, stride: int) -> tf.Tensor:
        kernel = self.p[f"{name}.weight"]
        x, padding = padded(x, kernel.shape[0], stride)
        return tf.nn.depthwise_conv2d(x, kernel, (1, stride, stride, 1), padding)

    def _normed(self, name: str, x: tf.Tensor) -> tf.Tensor:
        """In float32 inside: a scale and a shift rounded to bfloat16 lose what they leave of the difference."""
        norm = [self.p[f"{name}.norm.{part}"] for part in NORM]
        return tf.compat.v1.nn.fused_batch_norm(x, *norm, epsilon=EPSILON, is_training=False)[0]


def padded(x: tf.Tensor, kernel: int, stride: int) -> tuple[tf.Tensor, str]:
    """Images with the padding that "SAME" would put elsewhere, and the padding that is left to do."""
    if stride == 1:
        return x, "SAME"
    pad = (kernel - 1) // 2
    return tf.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))), "VALID"


def hard_sigmoid(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu6(x + 3) / 6


def hard_swish(x: tf.Tensor) -> tf.Tensor:
    return x * hard_sigmoid(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--precision", choices=["fp32", *DTYPES], default="fp32")
    arguments = parser.parse_args()
    save(all_weights(), arguments.folder, arguments.precision)
    print(arguments.folder)


def save(weights: Weights, folder: Path, precision: str = "fp32") -> None:
    """As a SavedModel with the input `image` and the output `logits`."""
    model = MobileNetV3Large(weights, DTYPES.get(precision, "float32"))

    @tf.function(input_signature=[tf.TensorSpec(SHAPE, "float32", INPUT)])
    def served(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return {OUTPUT: model(images)}

    tf.saved_model.save(model, str(folder), signatures={"serving_default": served})


if __name__ == "__main__":
    main()
