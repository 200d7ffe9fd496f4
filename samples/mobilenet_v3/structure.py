"""MobileNetV3-Large as a table: what every framework builds from, and the names and shapes of its weights.

Structure: A. Howard et al., "Searching for MobileNetV3" (2019), table 1, with the details of torchvision's
documented `mobilenet_v3_large`: batch norm with epsilon 0.001, symmetric padding of (kernel - 1) / 2 (also at stride 2,
where TensorFlow's "same" would pad otherwise), squeeze and excitation after the depthwise convolution's activation,
with a ReLU between and a hard sigmoid at the end; 5,483,032 parameters for 1000 classes.

A convolution's weights are (out, in / groups, height, width), those of a linear layer (out, in). `x.norm.gamma`,
`beta`, `mean` and `variance` belong to the batch norm after the convolution `x`.
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGE_SIZE = 224
CLASSES = 1000
EPSILON = 1e-3
INPUT, OUTPUT = "image", "logits"
NORM = ("gamma", "beta", "mean", "variance")


@dataclass(frozen=True)
class Block:
    """An inverted residual. `expand` is None where the first convolution is left out, `squeeze` where there is none."""

    name: str
    kernel: int
    channels_in: int
    expanded: int
    channels_out: int
    squeeze: int | None
    activation: str
    stride: int

    @property
    def expand(self) -> int | None:
        return self.expanded if self.expanded != self.channels_in else None

    @property
    def residual(self) -> bool:
        return self.stride == 1 and self.channels_in == self.channels_out


STEM = 16
"""Channels of the first convolution, 3 x 3 with stride 2, hard swish."""

HEAD = 960
"""Channels of the last convolution, 1 x 1, hard swish; then the mean over the image."""

HIDDEN = 1280
"""Outputs of the first linear layer, hard swish; then the classifier."""


def _blocks() -> tuple[Block, ...]:
    # kernel, expanded, out, squeeze and excitation, activation, stride
    table = [
        (3, 16, 16, False, "relu", 1),
        (3, 64, 24, False, "relu", 2),
        (3, 72, 24, False, "relu", 1),
        (5, 72, 40, True, "relu", 2),
        (5, 120, 40, True, "relu", 1),
        (5, 120, 40, True, "relu", 1),
        (3, 240, 80, False, "hardswish", 2),
        (3, 200, 80, False, "hardswish", 1),
        (3, 184, 80, False, "hardswish", 1),
        (3, 184, 80, False, "hardswish", 1),
        (3, 480, 112, True, "hardswish", 1),
        (3, 672, 112, True, "hardswish", 1),
        (5, 672, 160, True, "hardswish", 2),
        (5, 960, 160, True, "hardswish", 1),
        (5, 960, 160, True, "hardswish", 1),
    ]
    made, channels = [], STEM
    for number, (kernel, expanded, out, squeezes, activation, stride) in enumerate(table, start=1):
        squeeze = divisible(expanded / 4) if squeezes else None
        made.append(Block(f"block{number}", kernel, channels, expanded, out, squeeze, activation, stride))
        channels = out
    return tuple(made)


def divisible(value: float, by: int = 8) -> int:
    """The multiple of `by` that is nearest, not under 90 % of the value (the reference code of MobileNet)."""
    nearest = max(by, int(value + by / 2) // by * by)
    return nearest + by if nearest < 0.9 * value else nearest


BLOCKS = _blocks()


def shapes() -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, in the order of execution."""
    made = _convolution("stem", STEM, 3, 3)
    for block in BLOCKS:
        name = block.name
        if block.expand is not None:
            made |= _convolution(f"{name}.expand", block.expanded, block.channels_in, 1)
        made |= _convolution(f"{name}.depthwise", block.expanded, 1, block.kernel)
        if block.squeeze is not None:
            made |= {f"{name}.squeeze.weight": (block.squeeze, block.expanded, 1, 1)}
            made |= {f"{name}.squeeze.bias": (block.squeeze,)}
            made |= {f"{name}.excite.weight": (block.expanded, block.squeeze, 1, 1)}
            made |= {f"{name}.excite.bias": (block.expanded,)}
        made |= _convolution(f"{name}.project", block.channels_out, block.expanded, 1)
    made |= _convolution("head", HEAD, BLOCKS[-1].channels_out, 1)
    made |= {"hidden.weight": (HIDDEN, HEAD), "hidden.bias": (HIDDEN,)}
    return made | {"classifier.weight": (CLASSES, HIDDEN), "classifier.bias": (CLASSES,)}


def _convolution(name: str, out: int, into: int, kernel: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into, kernel, kernel), **{f"{name}.norm.{each}": (out,) for each in NORM}}


def torchvision_names() -> dict[str, str]:
    """Name here -> name in the `state_dict` of torchvision's `mobilenet_v3_large`; the shapes are the same."""
    made = _torchvision_convolution("stem", "features.0")
    for number, block in enumerate(BLOCKS, start=1):
        layers = ["expand"] if block.expand is not None else []
        layers += ["depthwise", *(["excitation"] if block.squeeze is not None else []), "project"]
        for place, layer in enumerate(layers):
            theirs = f"features.{number}.block.{place}"
            if layer != "excitation":
                made |= _torchvision_convolution(f"{block.name}.{layer}", theirs)
                continue
            for ours, fc in (("squeeze", "fc1"), ("excite", "fc2")):
                made |= {f"{block.name}.{ours}.{part}": f"{theirs}.{fc}.{part}" for part in ("weight", "bias")}
    made |= _torchvision_convolution("head", f"features.{len(BLOCKS) + 1}")
    for ours, theirs in (("hidden", "classifier.0"), ("classifier", "classifier.3")):
        made |= {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}
    return made


def _torchvision_convolution(ours: str, theirs: str) -> dict[str, str]:
    norm = dict(zip(NORM, ("weight", "bias", "running_mean", "running_var"), strict=True))
    return {
        f"{ours}.weight": f"{theirs}.0.weight",
        **{f"{ours}.norm.{name}": f"{theirs}.1.{their}" for name, their in norm.items()},
    }
