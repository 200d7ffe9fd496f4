"""CUPTI's activity API through ctypes, called only before and after batches run."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

KIND_MEMCPY = 1
KIND_MEMSET = 2
KIND_DRIVER = 4
KIND_RUNTIME = 5
KIND_CONCURRENT_KERNEL = 10
KIND_MARKER = 12
KIND_MARKER_DATA = 13
KIND_MEMCPY_PEER = 22
KIND_SYNCHRONIZATION = 38
KIND_GRAPH_TRACE = 51

DOMAIN_DRIVER = 1
DOMAIN_RUNTIME = 2

ATTRIBUTE_ZEROED_OUT_BUFFER = 5
THREAD_ID_SYSTEM = 1
FLUSH_FORCED = 1

ERROR_MULTIPLE_SUBSCRIBERS = 39

_LARGEST_GAP = 16
"""Largest gap in the numbers of functions."""

_LAUNCHING_PARTS = ("Launch", "Memcpy", "Memset", "MemPrefetch", "MemDiscard", "GraphUpload")
_LAUNCHING_EXCEPTIONS = ("LaunchHostFunc", "Params", "GraphAdd", "GraphKernelNode", "LaunchAttribute")

_INQUIRIES = re.compile(
    r"(cuda(Get|Set)Device|cuda(Get|PeekAt)LastError|cudaGetDeviceCount|cudaDeviceGet\w+|cudaPointerGetAttributes"
    r"|cudaGetError\w+|cuGetError\w+|cuCtx(Get|Set)(Current|Device|Flags)|cuDeviceGet\w*|cuDevicePrimaryCtxGetState"
    r"|cuPointerGetAttributes?|__cuda(Push|Pop)CallConfiguration)(_v\d+|_ptsz)*"
)
"""Frequent functions that neither wait nor start work. nsys does not record them either."""


class CuptiError(Exception):
    """A failed call of CUPTI or the driver."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function} failed with {code} ({text})")
        self.code = code


def driver_library() -> ctypes.CDLL | None:
    """Load the CUDA driver without initialising it; None if it is not installed."""
    return _load_driver(ctypes.DEFAULT_MODE)


def cuda_was_used() -> bool:
    """Whether this process has loaded the driver and called `cuInit`, as all GPU work requires."""
    driver = _load_driver(os.RTLD_NOLOAD)
    return driver is not None and is_initialised(driver)


def is_initialised(driver: ctypes.CDLL) -> bool:
    """Whether this process has called `cuInit`."""
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) == 0


def wait_for_gpus(driver: ctypes.CDLL) -> None:
    """Wait until all GPUs have finished this process's work."""
    count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if active.value and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
            driver.cuCtxPushCurrent_v2(context)
            driver.cuCtxSynchronize()
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
            driver.cuDevicePrimaryCtxRelease_v2(device)


def _load_driver(mode: int) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1", mode)
    except OSError:
        return None


def driver_cuda_version(driver: ctypes.CDLL) -> int:
    """Newest CUDA version that the driver supports, in CUDA's format (13000 is 13.0)."""
    version = ctypes.c_int()
    code = driver.cuDriverGetVersion(ctypes.byref(version))
    if code != 0:
        raise CuptiError("cuDriverGetVersion", code, "no version")
    return version.value


def find_libraries(cuda_major: int) -> Iterator[Path]:
    """Yield each `libcupti.so` of a CUDA major version: Python wheels first, as torch does, then toolkits."""
    name = f"libcupti.so.{cuda_major}"
    folders = [
        Path(entry) / "nvidia" / package / "lib"
        for entry in sys.path
        if entry
        for package in (f"cu{cuda_major}", "cuda_cupti")
    ]
    roots = [os.environ[key] for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    roots += ["/usr/local/cuda", *map(str, sorted(Path("/usr/local").glob(f"cuda-{cuda_major}*"), reverse=True))]
    folders += [Path(root) / "extras" / "CUPTI" / "lib64" for root in roots]
    folders += [Path(root) / "lib64" for root in roots]
    seen: set[Path] = set()
    for folder in folders:
        path = folder / name
        if path not in seen and path.is_file():
            seen.add(path)
            yield path


def starts_gpu_work(function: str) -> bool:
    """Whether a CUDA API function may start a kernel, copy, memset or graph."""
    return any(word in function for word in _LAUNCHING_PARTS) and not any(
        word in function for word in _LAUNCHING_EXCEPTIONS
    )


def is_inquiry(function: str) -> bool:
    """Whether a CUDA API function neither waits nor starts work, so that no pass records it."""
    return _INQUIRIES.fullmatch(function) is not None


class Cupti:
    """A loaded `libcupti.so`.

    Raises:
        OSError: the library or a dependency cannot be loaded.
        CuptiError: a call failed.
        AttributeError: a function is missing in this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        version = ctypes.c_uint32()
        self.call("cuptiGetVersion", ctypes.byref(version))
        self.version = version.value

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a CUptiResult. Raises `CuptiError`."""
        code = getattr(self.library, function)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuptiGetResultString(ctypes.c_int(code), ctypes.byref(text))
            raise CuptiError(function, code, text.value.decode() if text.value else "unknown")

    def functions(self, domain: int) -> dict[int, str]:
        """Return the API functions of a domain: name (`cudaLaunchKernel_v7000`) by cbid."""
        names: dict[int, str] = {}
        cbid = last = 0
        while cbid < last + _LARGEST_GAP:
            cbid += 1
            name = ctypes.c_char_p()
            code = self.library.cuptiGetCallbackName(ctypes.c_int(domain), ctypes.c_uint32(cbid), ctypes.byref(name))
            if code == 0 and name.value and name.value != b"INVALID":
                names[cbid] = name.value.decode()
                last = cbid
        return names

    def dropped_records(self) -> int:
        """Return the number of records dropped since the last call."""
        dropped = ctypes.c_size_t()
        self.call("cuptiActivityGetNumDroppedRecords", None, ctypes.c_uint32(0), ctypes.byref(dropped))
        return dropped.value
