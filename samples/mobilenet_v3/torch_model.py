"""MobileNetV3-Large in PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from perfharness.backends import FactoryModel
from perfharness.model.bench import TensorSpec
from samples.mobilenet_v3.reference import Weights
from samples.mobilenet_v3.structure import BLOCKS, EPSILON, HEAD, HIDDEN, IMAGE_SIZE, INPUT, OUTPUT, STEM, Block
from samples.mobilenet_v3.structure import CLASSES as ALL_CLASSES

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "hardswish": nn.Hardswish}


def build(weights: Weights, precision: str) -> FactoryModel:
    """In fp32: the backend brings it into the precision."""
    del precision
    model = MobileNetV3Large()
    load(model, weights)
    shape = (None, 3, IMAGE_SIZE, IMAGE_SIZE)
    return FactoryModel(model.eval(), (TensorSpec(name=INPUT, shape=shape, dtype="float32"),), (OUTPUT,))


def load(model: MobileNetV3Large, weights: Weights) -> None:
    """Fill in the weights by their names; none may be left over on either side."""
    norm = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
    named = {}
    for name, array in weights.items():
        owner, _, part = name.rpartition(".")
        named[f"{owner}.{norm.get(part, part)}"] = torch.from_numpy(array.copy())
    counters = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict({**named, **counters})


class Convolution(nn.Conv2d):
    """With its batch norm as `norm`, as the weights are named."""

    def __init__(self, into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(into, out, kernel, stride, padding=(kernel - 1) // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class InvertedResidual(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        wide = block.expanded
        self.expand = None if block.expand is None else Convolution(block.channels_in, wide, 1)
        self.depthwise = Convolution(wide, wide, block.kernel, block.stride, groups=wide)
        self.squeeze = None if block.squeeze is None else nn.Conv2d(wide, block.squeeze, 1)
        self.excite = None if block.squeeze is None else nn.Conv2d(block.squeeze, wide, 1)
        self.project = Convolution(wide, block.channels_out, 1)
        self.activation = ACTIVATIONS[block.activation]()
        self.residual = block.residual

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.activation(self.expand(x))
        y = self.activation(self.depthwise(y))
        if self.squeeze is not None and self.excite is not None:
            mean = nn.functional.adaptive_avg_pool2d(y, 1)
            y = y * nn.functional.hardsigmoid(self.excite(nn.functional.relu(self.squeeze(mean))))
        y = self.project(y)
        return x + y if self.residual else y


class MobileNetV3Large(nn.Sequential):
    """From images (batch, 3, height, width) to logits (batch, 1000)."""

    def __init__(self) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(stem=Convolution(3, STEM, 3, stride=2))
        layers["stem_activation"] = nn.Hardswish()
        layers |= {block.name: InvertedResidual(block) for block in BLOCKS}
        layers["head"] = Convolution(BLOCKS[-1].channels_out, HEAD, 1)
        layers |= {"head_activation": nn.Hardswish(), "pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(1)}
        layers |= {"hidden": nn.Linear(HEAD, HIDDEN), "hidden_activation": nn.Hardswish()}
        layers["classifier"] = nn.Linear(HIDDEN, ALL_CLASSES)
        super().__init__(layers)
