"""A small depth network in PyTorch, named as `depth_nets.py:create` in tests of a GPU."""

from __future__ import annotations

from typing import Any

from perfharness.backends.models import FactoryModel
from perfharness.model.bench import TensorSpec


def create(backend: str, precision: str) -> Any:
    """The same seeded weights for every precision."""
    import torch

    del backend, precision
    torch.manual_seed(0)
    layers: list[Any] = []
    for of, to in ((3, 32), (32, 32), (32, 32)):
        layers += [torch.nn.Conv2d(of, to, 3, padding=1), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Conv2d(32, 1, 3, padding=1), torch.nn.Softplus())
    image = TensorSpec(name="image", shape=(1, 3, None, None), dtype="float32")
    return FactoryModel(net.eval(), (image,), ("depth",))
