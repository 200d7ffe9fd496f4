"""Print as JSON which files an interpreter would import; run by that interpreter, without perfharness.

Takes a JSON object: `module`, a module to run; `functions`, names to find (`module:function` or dotted);
`path`, the folder of the script. Modules are not imported.
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
"""Packages whose version can affect the time of a pipeline."""


def installed() -> dict[str, str]:
    """Versions of packages, from the names of metadata folders (importlib.metadata takes 0.1 s)."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for path in Path(folder).glob("*-*.*-info"):  # .dist-info, or .egg-info in Linux distributions
            name, version, *_ = path.stem.split("-")
            found.setdefault(name.replace("_", "-").replace(".", "-").lower(), version)
    return found


def find(name: str) -> tuple[ModuleSpec | None, str]:
    """Spec and name of the innermost existing module of a dotted name."""
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
    """File that `python -m NAME` runs, or the reason why it cannot."""
    spec, found = find(name)
    if spec is not None and found == name:
        if spec.submodule_search_locations is None:
            return spec.origin, None
        main, found = find(f"{name}.__main__")
        if main is not None and found != name:
            return main.origin, None
        return None, f"{name} is a package without a __main__, so it cannot be run"
    if spec is not None and spec.submodule_search_locations is None:
        return None, f"no module named {name}; {found} is not a package"
    missing = ".".join(name.split(".")[: found.count(".") + 2]) if found else name.partition(".")[0]
    return None, f"no module named {missing}"


def find_function(function: str) -> dict[str, Any]:
    """Module and source file of a function, and whether the module is missing.

    A missing module of a package may also be created by the package.
    """
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
