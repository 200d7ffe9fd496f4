"""A TensorRT backend whose library and CUDA are stood in for by fakes that compute on the host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

from perfharness.backends import BackendOptions, backend, model_source

OLD, NEW, RTX = "10.0.1", "11.4.0.106", "1.7.1.116"
FAKES = (OLD, NEW, RTX) if find_spec("onnx") and find_spec("cuda") else ()
"""Versions that are stood in for, of TensorRT and TensorRT-RTX, where what the fakes compute with is installed."""


@dataclass
class Fake:
    """The backend's name, the fake CUDA, and what all objects of the fake TensorRT share."""

    name: str
    cuda: Any
    world: Any

    def load(self, model: str = "tests.contract.tiny_models:create", **options: Any) -> Any:
        """A session."""
        return backend(self.name).load(model_source(model), BackendOptions(device="cuda", **options))


def install(monkeypatch: pytest.MonkeyPatch, version: str, **cuda_options: Any) -> Fake:
    """Put the fakes in the place of the real modules."""
    from tests.tensorrt.fake_cuda import FakeCuda
    from tests.tensorrt.fake_tensorrt import fake_tensorrt

    cuda = FakeCuda(**cuda_options)
    module, world = fake_tensorrt(version, cuda)
    name = "tensorrt-rtx" if version == RTX else "tensorrt"
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setitem(sys.modules, name.replace("-", "_"), module)
    return Fake(name, cuda, world)
