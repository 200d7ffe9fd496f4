"""The modules that an interpreter would import, as JSON; run by that interpreter, which need not have perfharness."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform

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


if __name__ == "__main__":
    answer = {
        "version": platform.python_version(),
        "nvtx": version("nvtx"),
        "packages": {package: found for package in PACKAGES if (found := version(package)) is not None},
        "has_perfharness": importlib.util.find_spec("perfharness") is not None,
    }
    print(json.dumps(answer))
