"""The modules that an interpreter would import, as JSON; run by that interpreter, which need not have perfharness.

An argument is the name of a module that it is to run: where that is, without importing any part of it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

PACKAGES = (
    "accelerate", "cuda-python", "cupti-python", "cupy-cuda12x", "cupy-cuda13x", "cvcuda-cu12", "diffusers",
    "flash-attn", "jax", "jaxlib", "keras", "numba", "numpy", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-dali-cuda120", "onnx", "onnxruntime", "onnxruntime-gpu", "opencv-python", "opencv-python-headless",
    "openvino", "pandas", "pillow", "scipy", "tensorflow", "tensorflow-cpu", "tensorrt", "tensorrt-cu12",
    "tensorrt-cu13", "tokenizers", "torch", "torchaudio", "torchvision", "transformers", "triton", "vllm", "xformers",
)  # fmt: skip
"""Packages whose version may decide how long a pipeline takes."""


def version(package: str) -> str | None:
    """Of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_module(name: str) -> tuple[str | None, str | None]:
    """The file that `python -m NAME` runs, and why there is none."""
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = os.getcwd()  # noqa: PTH109
    path: Sequence[str] | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        here = ".".join(parts[:count])
        spec = _find(here, path)
        if spec is None:
            return None, f"there is no module {here}"
        path = spec.submodule_search_locations
        if path is None and count < len(parts):
            return None, f"{here} is a module and no package, so there is no {name}"
    if path is not None:
        spec = _find(f"{name}.__main__", path)
    return (spec.origin, None) if spec else (None, f"{name} is a package without a __main__, so it cannot be run")


def _find(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """The spec; of `importlib.util.find_spec`, the packages around it would be imported."""
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


if __name__ == "__main__":
    module_path, module_problem = find_module(sys.argv[1]) if len(sys.argv) > 1 else (None, None)
    answer = {
        "version": platform.python_version(),
        "nvtx": version("nvtx"),
        "packages": {package: found for package in PACKAGES if (found := version(package)) is not None},
        "has_perfharness": importlib.util.find_spec("perfharness") is not None,
        "module_path": module_path,
        "module_problem": module_problem,
    }
    print(json.dumps(answer))
