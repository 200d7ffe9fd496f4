"""A TensorRT backend whose library and CUDA are stood in for by fakes that compute on the host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

from perfharness.backends import BackendOptions, backend, model_source
from tests.tensorrt.signatures import LEAN, RTX, TENSORRT

FAKES = (*TENSORRT, RTX) if find_spec("onnx") and find_spec("cuda") else ()
"""Versions that are stood in for, where what the fakes compute with is installed."""

NAMES = {RTX: ("tensorrt-rtx", "tensorrt_rtx"), LEAN: ("tensorrt-lean", "tensorrt_lean_bindings")}
"""Of the backend and of its module, where they are not `tensorrt`."""


@dataclass
class Fake:
    """The backend's name, the fake CUDA, and what all objects of the fake TensorRT share."""

    name: str
    cuda: Any
    world: Any

    def load(self, model: str = "tests.contract.tiny_models:create", **options: Any) -> Any:
        """A `TensorRTSession`, whose inside is looked at too."""
        return backend(self.name).load(model_source(model), BackendOptions(device="cuda", **options))


def install(monkeypatch: pytest.MonkeyPatch, version: str, **cuda_options: Any) -> Fake:
    """Put the fakes in the place of the real modules."""
    from tests.tensorrt.fake_cuda import FakeCuda
    from tests.tensorrt.fake_tensorrt import fake_tensorrt

    cuda = FakeCuda(**cuda_options)
    module, world = fake_tensorrt(version, cuda)
    name, imported = NAMES.get(version, ("tensorrt", "tensorrt"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setitem(sys.modules, imported, module)
    return Fake(name, cuda, world)
