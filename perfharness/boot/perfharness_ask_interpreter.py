"""The modules that an interpreter would import, as JSON; run by that interpreter, which need not have perfharness."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform

if __name__ == "__main__":
    try:
        nvtx: str | None = importlib.metadata.version("nvtx")
    except importlib.metadata.PackageNotFoundError:
        nvtx = None
    answer = {
        "version": platform.python_version(),
        "nvtx": nvtx,
        "has_perfharness": importlib.util.find_spec("perfharness") is not None,
    }
    print(json.dumps(answer))
