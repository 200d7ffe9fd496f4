"""What an interpreter would import, as JSON; run by that interpreter, which need not have perfharness.

The argument is JSON: `module`, the name of a module to run; `functions`, names to find (`module:function`, or dotted);
`path`, the folder of the script. Modules are found but not imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

PACKAGES = (
    "accelerate", "cuda-python", "cupti-python", "cupy-cuda12x", "cupy-cuda13x", "cvcuda-cu12", "diffusers",
    "flash-attn", "jax", "jaxlib", "keras", "numba", "numpy", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-dali-cuda120", "onnx", "onnxruntime", "onnxruntime-gpu", "opencv-python", "opencv-python-headless",
    "openvino", "pandas", "pillow", "scipy", "tensorflow", "tensorflow-cpu", "tensorrt", "tensorrt-cu12",
    "tensorrt-cu13", "tokenizers", "torch", "torchaudio", "torchvision", "transformers", "triton", "vllm", "xformers",
)  # fmt: skip
"""Packages whose version may decide how long a pipeline takes."""


def installed() -> dict[str, str]:
    """Versions of packages, from the names of their metadata folders: importlib.metadata takes 0.1 s to read them."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for path in Path(folder).glob("*-*.*-info"):  # .dist-info, or .egg-info of a distribution of Linux
            name, version, *_ = path.stem.split("-")
            found.setdefault(name.replace("_", "-").replace(".", "-").lower(), version)
    return found


def find(name: str) -> tuple[ModuleSpec | None, str]:
    """The spec of the innermost module of a dotted name that there is, and its name."""
    found, found_name = None, ""
    path: Sequence[str] | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        here = ".".join(parts[:count])
        specs = (finder.find_spec(here, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((one for one in specs if one is not None), None)
        if spec is None:
            break
        found, found_name, path = spec, here, spec.submodule_search_locations
        if path is None:
            break
    return found, found_name


def find_module(name: str) -> tuple[str | None, str | None]:
    """The file that `python -m NAME` runs, and why there is none."""
    spec, found = find(name)
    if spec is not None and found == name:
        if spec.submodule_search_locations is None:
            return spec.origin, None
        main, found = find(f"{name}.__main__")
        if main is not None and found != name:
            return main.origin, None
        return None, f"{name} is a package without a __main__, so it cannot be run"
    if spec is not None and spec.submodule_search_locations is None:
        return None, f"{found} is a module and no package, so there is no {name}"
    missing = ".".join(name.split(".")[: found.count(".") + 2]) if found else name.partition(".")[0]
    return None, f"there is no module {missing}"


def find_function(function: str) -> dict[str, Any]:
    """The module of a function and the file of its source, and whether a name may be a module that its parent makes."""
    module, colon, qualname = function.partition(":")
    spec, found = find(module)
    if not colon:
        module, qualname = found, function[len(found) + 1 :] if found else function
    is_missing = spec is None or (found != module and spec.submodule_search_locations is not None)
    source = spec.origin if spec is not None and found == module and (spec.origin or "").endswith(".py") else None
    return {"module": module, "qualname": qualname, "source": source, "is_missing": is_missing}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    versions = installed()
    answer: dict[str, Any] = {
        "version": platform.python_version(),
        "nvtx": versions.get("nvtx"),
        "packages": {package: versions[package] for package in PACKAGES if package in versions},
        "has_perfharness": importlib.util.find_spec("perfharness") is not None,
    }
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = asked.get("path") or os.getcwd()  # noqa: PTH109
    if "module" in asked:
        answer["module_path"], problem = find_module(asked["module"])
        answer["module_problem"] = problem and f"{sys.executable}: {problem}"
    answer["functions"] = [find_function(function) for function in asked.get("functions", ())]
    print(json.dumps(answer))
