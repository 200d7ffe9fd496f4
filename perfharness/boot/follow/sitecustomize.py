"""The start-up hook: the one way of a launch into every Python process, the launched one and those that it starts.

A launch puts this folder first on PYTHONPATH. The user's own `sitecustomize` is imported afterwards, as without it.
In the launched process perfharness starts at once, in others with the first module that makes ranges or uses the GPU.
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
"""Modules that load the CUDA driver, or what does."""

GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")


class Follow:
    """A finder that finds nothing itself: it starts perfharness before one of these modules is found."""

    def __init__(self, names: tuple[str, ...], output_dir: str) -> None:
        self.names = names
        self.output_dir = output_dir

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Start; then what the other finders find, of which the tracer may have added one."""
        if name not in self.names or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        self.start()
        others = [finder for finder in sys.meta_path if finder is not self]
        return next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)

    def start(self, *, launched: bool = False) -> None:
        """Start the tracer and the host probe, and note the rank, as far as the launch asks for them."""
        tracer = os.environ.get("PERFHARNESS_TRACER")
        if not tracer or not os.environ.get("PERFHARNESS_OUTPUT_DIR"):
            note(self.output_dir, "the program has taken the variables of the launch out of its environment")
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
    """Leave for the launch why this process is not followed."""
    try:
        with open(f"{output_dir}/.unfollowed_{os.getpid()}", "w") as file:  # noqa: PTH123
            file.write(reason)
    except OSError:
        pass


def main() -> None:
    """Watch for the modules, where this process is part of a launch."""
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
    """Import the `sitecustomize` that Python would have imported."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")  # another one
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize" and not hasattr(sys, "perfharness_follows"):
    setattr(sys, "perfharness_follows", True)  # noqa: B010 - should the folder be found again by another name
    main()
    users_own()
