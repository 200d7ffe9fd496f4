"""Imported by each Python that a launched process starts: the tracer follows it, once it can make ranges or GPU work.

A launch puts this folder first on PYTHONPATH. The user's own `sitecustomize` is imported afterwards, as without it.
What costs time is imported only with the first module that makes ranges or uses the GPU.
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
    """A finder that finds nothing itself: it starts the tracer before one of these modules is found."""

    def __init__(self, names: tuple[str, ...], output_dir: str) -> None:
        self.names = names
        self.output_dir = output_dir

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Start the tracer; then what the other finders find, of which the tracer may have added one."""
        if name not in self.names or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        self.start()
        others = [finder for finder in sys.meta_path if finder is not self]
        return next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)

    def start(self) -> None:
        """Start the tracer."""
        tracer = os.environ.get("PERFHARNESS_TRACER")
        if not tracer or not os.environ.get("PERFHARNESS_OUTPUT_DIR"):
            note(self.output_dir, "the program has taken the variables of the launch out of its environment")
            return
        try:
            from perfharness.tracer import follow

            follow.start(GPU)
            if tracer == "nsys":
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
    if output_dir and tracer:
        has_gpu = tracer == "embedded" and any(map(os.path.exists, GPU_FILES))
        sys.meta_path.insert(0, Follow((*RANGES, *(GPU if has_gpu else ())), output_dir))
        if os.environ.get("PERFHARNESS_ANNOTATIONS"):
            try:
                from perfharness.annotate import follow
            except ImportError as error:
                note(output_dir, f"this Python cannot import perfharness ({error})")
            else:
                follow.start()


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
