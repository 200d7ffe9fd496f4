"""Streams, events, and pinned host and device buffers through cuda-python, for backends without their own.

Everything is freed by `close`, which may be called in any order and repeatedly. CUDA errors become `BackendError`, or
`OutOfMemoryError` for missing memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import imported
from perfharness.backends.models import Shape
from perfharness.backends.session import DeviceTimer, Session
from perfharness.distribution import install_command
from perfharness.errors import BackendError, OutOfMemoryError
from perfharness.model.bench import TensorSpec


def runtime() -> Any:
    """Bindings of the CUDA runtime. Raises `BackendUnavailableError` if cuda-python is not installed."""
    return imported("cuda.bindings.runtime", install_command("cuda"), "cuda-python")


def checked(answer: tuple[Any, ...], what: str, size_bytes: int | None = None) -> Any:
    """Unwrap a result of the bindings, which return an error code first."""
    code, *values = answer
    if int(code) != 0:
        name = getattr(code, "name", str(code))
        if name == "cudaErrorMemoryAllocation":
            raise OutOfMemoryError(f"no memory for {what}" + ("" if size_bytes is None else f" of {size_bytes} bytes"))
        raise BackendError(f"{what} failed: {name}")
    return values[0] if len(values) == 1 else tuple(values)


def gpu_problem() -> str | None:
    """Reason why the CUDA runtime cannot use a GPU here, or None. Raises `BackendUnavailableError`."""
    code, count = runtime().cudaGetDeviceCount()
    if int(code) != 0:
        return f"no GPU that CUDA can use here ({getattr(code, 'name', code)})"
    return None if count else "no GPU that CUDA can use here"


class CudaStream:
    """A stream that does not synchronise with the default stream."""

    def __init__(self) -> None:
        self._cuda = runtime()
        self._stream = checked(self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking), "a CUDA stream")

    @property
    def pointer(self) -> int:
        """The `cudaStream_t` as a number."""
        return int(self._stream)

    def synchronize(self) -> None:
        """Wait for all work in the stream."""
        checked(self._cuda.cudaStreamSynchronize(self._stream), "what runs in the CUDA stream")

    def close(self) -> None:
        """Destroy the stream."""
        if self._stream is not None:
            self._cuda.cudaStreamDestroy(self._stream)
            self._stream = None


class StreamTimer(DeviceTimer):
    """Time between two events of a stream."""

    def __init__(self, stream: CudaStream) -> None:
        self._cuda, self._stream = runtime(), stream.pointer
        self._events: list[Any] = []
        for _ in range(2):
            self._events.append(checked(self._cuda.cudaEventCreate(), "a CUDA event"))

    def start(self) -> None:
        """Record the first event."""
        checked(self._cuda.cudaEventRecord(self._events[0], self._stream), "a CUDA event")

    def stop(self) -> None:
        """Record the second event."""
        checked(self._cuda.cudaEventRecord(self._events[1], self._stream), "a CUDA event")

    def milliseconds(self) -> float:
        """Wait for the second event; the resolution is about half a microsecond."""
        checked(self._cuda.cudaEventSynchronize(self._events[1]), "what runs in the CUDA stream")
        return float(checked(self._cuda.cudaEventElapsedTime(*self._events), "the time between CUDA events"))

    def __del__(self) -> None:
        for event in self._events:
            self._cuda.cudaEventDestroy(event)


class HostBuffer:
    """A tensor in host memory: `host` is the array, `pointer` the address for the model."""

    def __init__(self, shape: Shape, dtype: npt.DTypeLike) -> None:
        self.host: npt.NDArray[Any] = np.zeros(shape, dtype)
        self.pointer = int(self.host.ctypes.data)

    def close(self) -> None:
        """Do nothing, because there is no other memory."""


class PairedBuffer(HostBuffer):
    """A tensor on host and GPU: `host` is an array in pinned memory, `pointer` GPU memory of equal size."""

    def __init__(self, shape: Shape, dtype: npt.DTypeLike) -> None:
        self._cuda = runtime()
        self._pinned: Any = None
        self._device: Any = None
        kind = np.dtype(dtype)
        self.nbytes = prod(shape) * kind.itemsize
        room = max(self.nbytes, 1)
        self._device = checked(self._cuda.cudaMalloc(room), "device memory", room)
        try:
            self._pinned = checked(self._cuda.cudaHostAlloc(room, 0), "pinned host memory", room)
        except BackendError:
            self.close()
            raise
        raw = (ctypes.c_byte * room).from_address(int(self._pinned))
        self.host = np.frombuffer(memoryview(raw), dtype=kind, count=prod(shape)).reshape(shape)
        self.host[...] = 0
        self.pointer = int(self._device)

    def copy_in(self, stream: CudaStream) -> None:
        """Start the copy from the host to the GPU."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        answer = self._cuda.cudaMemcpyAsync(self._device, self._pinned, self.nbytes, kind, stream.pointer)
        checked(answer, "a copy to the GPU")

    def copy_out(self, stream: CudaStream) -> None:
        """Start the copy from the GPU to the host."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        answer = self._cuda.cudaMemcpyAsync(self._pinned, self._device, self.nbytes, kind, stream.pointer)
        checked(answer, "a copy from the GPU")

    def close(self) -> None:
        """Free both; `host` must not be accessed afterwards."""
        self.host = np.empty(0)
        if self._device is not None:
            self._cuda.cudaFree(self._device)
            self._device = None
        if self._pinned is not None:
            self._cuda.cudaFreeHost(self._pinned)
            self._pinned = None


class BufferSession(Session):
    """A session over buffers passed by address; on a GPU, copied in the session's own stream."""

    def __init__(self, on_gpu: bool) -> None:
        super().__init__()
        self._stream = CudaStream() if on_gpu else None
        self._buffers: dict[str, Any] = {}

    def _buffer(self, spec: TensorSpec, shape: Shape) -> HostBuffer:
        """Create the buffer of an input or output."""
        made = (HostBuffer if self._stream is None else PairedBuffer)(shape, spec.dtype)
        self._buffers[spec.name], self._host[spec.name] = made, made.host
        return made

    def copy_in(self) -> None:
        """Copy host to GPU in the stream."""
        if self._stream is not None:
            for spec in self.inputs:
                self._buffers[spec.name].copy_in(self._stream)

    def copy_out(self) -> None:
        """Copy GPU to host in the stream."""
        if self._stream is not None:
            for spec in self.outputs:
                if spec.name in self._buffers:  # others belong to the framework
                    self._buffers[spec.name].copy_out(self._stream)

    def synchronize(self) -> None:
        """Wait for the stream."""
        if self._stream is not None:
            self._stream.synchronize()

    def _results(self) -> Sequence[Any]:
        return [self._host[spec.name] for spec in self.outputs if spec.name in self._host]

    def _free(self) -> None:
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers = {}

    def _release(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def device_timer(self) -> DeviceTimer | None:
        """Timer with events in the session's stream."""
        return None if self._stream is None else StreamTimer(self._stream)
