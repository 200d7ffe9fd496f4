"""Start-up hook in every Python process of a launch, which puts this folder first on PYTHONPATH.

In the launched process perfharness starts at once, in its children with the first module that makes
ranges or uses the GPU. The user's own `sitecustomize` is imported afterwards.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs start-up time
RANGES = ("nvtx", "perfharness.recorder")
GPU = (
    "torch", "cuda", "cupy", "numba", "pycuda", "tensorflow", "jaxlib", "onnxruntime", "tensorrt", "tensorrt_lean",
    "tensorrt_dispatch", "tensorrt_lean_bindings", "tensorrt_rtx", "paddle", "mxnet", "cvcuda", "nvcv", "ctranslate2",
    "llama_cpp", "rmm", "nvidia.dali",
)  # fmt: skip
"""Modules that load the CUDA driver, directly or not."""

GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")


class Follow:
    """Finder that starts perfharness before the first import of one of these modules."""

    def __init__(self, names: tuple[str, ...], output_dir: str) -> None:
        self.names = names
        self.output_dir = output_dir

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Start perfharness, then ask the other finders, including those that it has added."""
        if name not in self.names or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        self.start()
        others = [finder for finder in sys.meta_path if finder is not self]
        return next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)

    def start(self, *, launched: bool = False) -> None:
        """Start the tracer and host probe, and record the rank, as requested by the launch."""
        tracer = os.environ.get("PERFHARNESS_TRACER")
        if not tracer or not os.environ.get("PERFHARNESS_OUTPUT_DIR"):
            note(self.output_dir, "the program removed the launch's variables from its environment")
            return
        try:
            from perfharness import host_probe
            from perfharness import tracer as embedded
            from perfharness.boot import ranks

            embedded.start(GPU, leave_log=launched)
            host_probe.start()
            if tracer == "nsys" and ranks.rank_facts() is not None:
                from perfharness.recorder import journal

                journal.leave_rank()
        except ImportError as error:
            note(self.output_dir, f"this Python cannot import perfharness ({error})")


def note(output_dir: str, reason: str) -> None:
    """Write the reason why this process is not followed, for the launch."""
    try:
        with open(f"{output_dir}/.unfollowed_{os.getpid()}", "w") as file:  # noqa: PTH123
            file.write(reason)
    except OSError:
        pass


def main() -> None:
    """Watch for the modules if this process belongs to a launch."""
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != FOLDER]  # noqa: PTH100
    tracer, output_dir = os.environ.get("PERFHARNESS_TRACER"), os.environ.get("PERFHARNESS_OUTPUT_DIR")
    if not output_dir or not tracer:
        return
    has_gpu = tracer == "embedded" and any(map(os.path.exists, GPU_FILES))
    follow = Follow((*RANGES, *(GPU if has_gpu else ())), output_dir)
    launched = os.environ.pop("PERFHARNESS_LAUNCHED", None) is not None
    if launched and (tracer != "nsys" or os.environ.get("PERFHARNESS_EXPLAIN") == "1"):
        follow.start(launched=True)
    else:
        sys.meta_path.insert(0, follow)
    if os.environ.get("PERFHARNESS_ANNOTATIONS"):
        try:
            from perfharness import annotate
        except ImportError as error:
            note(output_dir, f"this Python cannot import perfharness ({error})")
        else:
            annotate.start()


def users_own() -> None:
    """Import the user's own `sitecustomize`."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")  # not this file, which is no longer in sys.path
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize" and not hasattr(sys, "perfharness_follows"):
    setattr(sys, "perfharness_follows", True)  # noqa: B010 - the folder may be found again by another name
    main()
    users_own()
