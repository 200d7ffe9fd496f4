"""Streams, events, pinned host and device buffers through cuda-python, for backends without their own.

Everything is freed by `close`, in any order, more than once if necessary. Errors of CUDA become `BackendError`, and
`OutOfMemoryError` where there is no room.
"""

from __future__ import annotations

import ctypes
import re
from importlib import import_module, metadata
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import DeviceTimer
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from perfharness.model.distribution import install_command

GIL_FREE_SINCE = (12, 9, 1)
INSTALL = install_command("cuda")


def runtime() -> Any:
    """The bindings of CUDA's runtime. Raises `BackendUnavailableError` where cuda-python is not installed."""
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError:
        pass
    try:
        return import_module("cuda.cudart")  # its name before cuda-python 12.6
    except ImportError:
        raise BackendUnavailableError(f"cuda-python is not installed: {INSTALL}") from None


def checked(answer: tuple[Any, ...], what: str, size_bytes: int | None = None) -> Any:
    """The value of a call of the bindings, which return an error code first."""
    code, *values = answer
    if int(code) != 0:
        name = getattr(code, "name", str(code))
        if name == "cudaErrorMemoryAllocation":
            raise OutOfMemoryError(f"no room for {what}" + ("" if size_bytes is None else f" of {size_bytes} bytes"))
        raise BackendError(f"{what} failed: {name}")
    return values[0] if len(values) == 1 else tuple(values)


def threads_problem() -> str | None:
    """Why one thread that waits for a stream blocks all others, or None.

    The bindings release the GIL from 12.9.1 and 13.0 on (release notes of cuda-bindings 12.9.1).
    """
    version = _bindings_version()
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) >= GIL_FREE_SINCE:
        return None
    return f"cuda-python {version} keeps Python's GIL while it waits for a CUDA stream; take 12.9.1 or newer"


def _bindings_version() -> str:
    """Version of the package with the bindings; before 12.8 there was only one."""
    try:
        return metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError:
        return metadata.version("cuda-python")


class CudaStream:
    """A stream of its own, that does not wait for the default stream."""

    def __init__(self) -> None:
        self._cuda = runtime()
        self._stream = checked(self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking), "a CUDA stream")

    @property
    def pointer(self) -> int:
        """The `cudaStream_t` as a number."""
        return int(self._stream)

    def synchronize(self) -> None:
        """Wait until all that was put into the stream is done."""
        checked(self._cuda.cudaStreamSynchronize(self._stream), "what runs in the CUDA stream")

    def timer(self) -> StreamTimer:
        """A timer on this stream."""
        return StreamTimer(self._cuda, self._stream)

    def close(self) -> None:
        """Destroy the stream."""
        if self._stream is not None:
            self._cuda.cudaStreamDestroy(self._stream)
            self._stream = None


class StreamTimer(DeviceTimer):
    """Time between two events of a stream."""

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda, self._stream = cuda, stream
        self._first = checked(cuda.cudaEventCreate(), "a CUDA event")
        self._last = checked(cuda.cudaEventCreate(), "a CUDA event")

    def start(self) -> None:
        """Record the first event."""
        checked(self._cuda.cudaEventRecord(self._first, self._stream), "a CUDA event")

    def stop(self) -> None:
        """Record the second event."""
        checked(self._cuda.cudaEventRecord(self._last, self._stream), "a CUDA event")

    def milliseconds(self) -> float:
        """Wait for the second event; the resolution is about half a microsecond."""
        checked(self._cuda.cudaEventSynchronize(self._last), "what runs in the CUDA stream")
        return float(checked(self._cuda.cudaEventElapsedTime(self._first, self._last), "the time between CUDA events"))

    def __del__(self) -> None:
        for event in (getattr(self, "_first", None), getattr(self, "_last", None)):
            if event is not None:
                self._cuda.cudaEventDestroy(event)


class PairedBuffer:
    """A tensor on host and GPU: `host` is an array in pinned memory, `device_pointer` GPU memory of the same size."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._cuda = runtime()
        self._pinned: Any = None
        self._device: Any = None
        kind = np.dtype(dtype)
        self.shape, self.dtype, self.nbytes = shape, kind, prod(shape) * kind.itemsize
        room = max(self.nbytes, 1)
        self._device = checked(self._cuda.cudaMalloc(room), "device memory", room)
        try:
            self._pinned = checked(self._cuda.cudaHostAlloc(room, 0), "pinned host memory", room)
        except BackendError:
            self.close()
            raise
        raw = (ctypes.c_byte * room).from_address(int(self._pinned))
        self.host: npt.NDArray[Any] = np.frombuffer(memoryview(raw), dtype=kind, count=prod(shape)).reshape(shape)
        self.host[...] = 0

    @property
    def device_pointer(self) -> int:
        """Address on the GPU."""
        return int(self._device)

    def copy_in(self, stream: CudaStream) -> None:
        """Start the copy from the host to the GPU."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        checked(
            self._cuda.cudaMemcpyAsync(self._device, self._pinned, self.nbytes, kind, stream.pointer),
            "a copy to the GPU",
        )

    def copy_out(self, stream: CudaStream) -> None:
        """Start the copy from the GPU to the host."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(
            self._cuda.cudaMemcpyAsync(self._pinned, self._device, self.nbytes, kind, stream.pointer),
            "a copy from the GPU",
        )

    def close(self) -> None:
        """Free both; `host` must not be accessed afterwards."""
        self.host = np.empty(0, dtype=self.dtype)
        if self._device is not None:
            self._cuda.cudaFree(self._device)
            self._device = None
        if self._pinned is not None:
            self._cuda.cudaFreeHost(self._pinned)
            self._pinned = None


def gpu_problem() -> str | None:
    """Why no GPU can be used here through CUDA's runtime, or None."""
    try:
        cuda = runtime()
    except BackendUnavailableError as error:
        return str(error)
    code, count = cuda.cudaGetDeviceCount()
    if int(code) != 0:
        return f"there is no GPU that CUDA can use here ({getattr(code, 'name', code)})"
    return None if count else "there is no GPU that CUDA can use here"
