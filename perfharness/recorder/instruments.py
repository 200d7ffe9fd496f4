"""Settings and instruments that slow a process down."""

from __future__ import annotations

import gc
import os
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

OFF = ("", "0", "false", "no", "off")
_ON = """
    CUDA_LAUNCH_BLOCKING CUDA_CACHE_DISABLE CUDA_FORCE_PTX_JIT CUDNN_LOGINFO_DBG CUBLAS_LOGINFO_DBG
    PYTORCH_NO_CUDA_MEMORY_CACHING TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE TORCH_COMPILE_DEBUG
    TORCHINDUCTOR_FORCE_DISABLE_CACHES TORCH_NCCL_BLOCKING_WAIT TRITON_INTERPRET TRITON_ALWAYS_COMPILE TRITON_DEBUG
    MKL_VERBOSE ONEDNN_VERBOSE DNNL_VERBOSE PYTHONASYNCIODEBUG MALLOC_PERTURB_
"""
VARIABLES: dict[str, str | None] = {
    **dict.fromkeys(_ON.split()),
    "NVIDIA_TF32_OVERRIDE": "0",
    "PYTORCH_JIT": "0",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "PYTHONMALLOC": "debug",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}
"""Environment variables that slow a process down with this value, or (None) unless their value is in `OFF`."""

PRELOADED = ("memray", "heaptrack", "libmemusage", "vgpreload", "libasan", "libtsan", "libubsan")
"""Memory tracers and sanitizers, by part of their name in LD_PRELOAD."""


def found() -> list[str]:
    """List what is on in this process and on the calling thread."""
    names = []
    for name, read in READINGS.items():
        with suppress(Exception):  # missing in this version or build of Python or PyTorch
            if value := read():
                names.append(name if value is True else f"{name} ({value})")
    for name, slow in VARIABLES.items():
        value = os.environ.get(name, "")
        if value == slow or (slow is None and value.lower() not in OFF):
            names.append(f"{name}={value}")
    return names


def _named(function: Any) -> str | None:
    """Qualified name of a function, or of an object's type."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return None if function is None else f"{named.__module__}.{named.__qualname__}"


def _monitoring() -> str:
    """Tools of `sys.monitoring` (Python 3.12 and later)."""
    return ", ".join(filter(None, map(vars(sys)["monitoring"].get_tool, range(6))))


def _is_attached() -> bool:
    """Whether a debugger or strace is attached."""
    return "\nTracerPid:\t0\n" not in Path("/proc/self/status").read_text(errors="replace")


def _preloaded() -> str:
    return ", ".join(name for name in PRELOADED if name in os.environ.get("LD_PRELOAD", ""))


READINGS: dict[str, Callable[[], Any]] = {
    "profiler": lambda: _named(sys.getprofile() or threading.getprofile()),
    "trace function": lambda: _named(sys.gettrace() or threading.gettrace()),
    "monitoring tool": _monitoring,
    "attached debugger": _is_attached,
    "perf trampolines of Python": lambda: vars(sys)["is_stack_trampoline_active"](),
    "tracemalloc": tracemalloc.is_tracing,
    "preloaded memory tracer": _preloaded,
    "development mode of Python": lambda: sys.flags.dev_mode,
    "debug build of Python": lambda: hasattr(sys, "gettotalrefcount"),
    "debugging of the garbage collector": lambda: gc.get_debug() != 0,
    "PyTorch profiler": lambda: sys.modules["torch"].autograd._profiler_enabled(),
    "PyTorch anomaly detection": lambda: sys.modules["torch"].is_anomaly_enabled(),
    "PyTorch deterministic algorithms": lambda: sys.modules["torch"].are_deterministic_algorithms_enabled(),
    "PyTorch without cuDNN": lambda: not sys.modules["torch"].backends.cudnn.enabled,
    "PyTorch synchronization warnings": lambda: sys.modules["torch"]._C._cuda_get_sync_debug_mode() != 0,
}
"""Reading functions by name. A value other than True is shown behind the name."""
