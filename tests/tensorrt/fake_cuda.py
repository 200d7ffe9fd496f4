"""CUDA's runtime on the host: streams that run when they are synchronised, memory with its kind.

Every call is bound to the signature of the real function of cuda-python, so that a call which that refuses fails here.
"""

# ruff: noqa: N802  # methods have the names of CUDA's functions

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import cuda.bindings.runtime as real

Work = Callable[[], None]
OK = real.cudaError_t.cudaSuccess


@dataclass
class Stream:
    """Pending work, in order."""

    number: int
    pending: list[Work] = field(default_factory=list)
    captured: list[Work] | None = None
    is_open: bool = True

    def __int__(self) -> int:
        return self.number

    def put(self, work: Work) -> None:
        (self.pending if self.captured is None else self.captured).append(work)

    def run(self) -> None:
        while self.pending:
            self.pending.pop(0)()


@dataclass
class Event:
    at_ms: float | None = None


@dataclass
class Graph:
    works: list[Work] | None


class FakeCuda:
    """Replaces the module `cuda.bindings.runtime`.

    Args:
        room_bytes: of the device.
        capability: of the one GPU; None: there is none.
    """

    def __init__(self, room_bytes: int = 1 << 30, capability: tuple[int, int] | None = (8, 9)) -> None:
        self.room_bytes, self.capability = room_bytes, capability
        self.now_ms = 0.0
        self.streams: dict[int, Stream] = {}
        self.events = 0
        self.graphs = 0
        self.memory: dict[str, dict[int, Any]] = {"host": {}, "device": {}}

    def __getattr__(self, name: str) -> Any:
        found = getattr(real, name)  # raises for names that the real module lacks
        if not callable(found) or isinstance(found, type):
            return found
        does = getattr(type(self), f"_{name}", None)
        if does is None:
            raise AssertionError(f"the fake has no {name}")
        signature = inspect.signature(found)

        def call(*arguments: Any, **named: Any) -> Any:
            given = signature.bind(*arguments, **named)
            return does(self, **given.arguments)

        return call

    def used_bytes(self, kind: str = "device") -> int:
        return sum(len(block) for block in self.memory[kind].values())

    def bytes_at(self, kind: str, address: int, size: int) -> Any:
        """Memory that was allocated there; what is freed, or of the other kind, is no memory."""
        block = self.memory[kind].get(address)
        assert block is not None, f"{address} is no {kind} memory"
        assert size <= len(block), f"{size} bytes of {len(block)}"
        return block

    def take(self, kind: str, size: int) -> tuple[Any, int | None]:
        if kind == "device" and self.used_bytes() + size > self.room_bytes:
            return real.cudaError_t.cudaErrorMemoryAllocation, None
        block = (ctypes.c_byte * size)()
        address = ctypes.addressof(block)
        self.memory[kind][address] = block
        return OK, address

    def stream(self, stream: Any) -> Stream:
        found = self.streams[int(stream)]
        assert found.is_open
        return found

    def _cudaGetDeviceCount(self) -> tuple[Any, int | None]:
        return (OK, 1) if self.capability else (real.cudaError_t.cudaErrorNoDevice, None)

    def _cudaGetDeviceProperties(self, device: int) -> tuple[Any, Any]:
        assert device == 0
        return OK, SimpleNamespace(name=b"Fake GPU")

    def _cudaDeviceGetAttribute(self, attr: Any, device: int) -> tuple[Any, int]:
        assert device == 0
        assert self.capability is not None
        return OK, self.capability[0 if attr == real.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor else 1]

    def _cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, Stream]:
        assert flags == real.cudaStreamNonBlocking
        made = Stream(len(self.streams) + 1)
        self.streams[made.number] = made
        return OK, made

    def _cudaStreamDestroy(self, stream: Any) -> tuple[Any]:
        self.stream(stream).is_open = False
        return (OK,)

    def _cudaStreamSynchronize(self, stream: Any) -> tuple[Any]:
        found = self.stream(stream)
        if found.captured is not None:
            return (real.cudaError_t.cudaErrorStreamCaptureUnsupported,)
        found.run()
        return (OK,)

    def _cudaEventCreate(self) -> tuple[Any, Event]:
        self.events += 1
        return OK, Event()

    def _cudaEventDestroy(self, event: Any) -> tuple[Any]:
        self.events -= 1
        return (OK,)

    def _cudaEventRecord(self, event: Event, stream: Any) -> tuple[Any]:
        def record() -> None:
            event.at_ms = self.now_ms

        self.stream(stream).put(record)
        return (OK,)

    def _cudaEventSynchronize(self, event: Event) -> tuple[Any]:
        for stream in self.streams.values():
            while event.at_ms is None and stream.pending:
                stream.pending.pop(0)()
        return (OK,)

    def _cudaEventElapsedTime(self, start: Event, end: Event) -> tuple[Any, float | None]:
        if start.at_ms is None or end.at_ms is None:
            return real.cudaError_t.cudaErrorNotReady, None
        return OK, end.at_ms - start.at_ms

    def _cudaHostAlloc(self, size: int, flags: int) -> tuple[Any, int | None]:
        return self.take("host", size)

    def _cudaMalloc(self, size: int) -> tuple[Any, int | None]:
        return self.take("device", size)

    def _cudaFree(self, devPtr: int) -> tuple[Any]:  # noqa: N803
        del self.memory["device"][devPtr]
        return (OK,)

    def _cudaFreeHost(self, ptr: int) -> tuple[Any]:
        del self.memory["host"][ptr]
        return (OK,)

    def _cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Any) -> tuple[Any]:
        to_device = kind == real.cudaMemcpyKind.cudaMemcpyHostToDevice
        places = ("device", "host") if to_device else ("host", "device")

        def copy() -> None:
            self.bytes_at(places[0], dst, count)
            self.bytes_at(places[1], src, count)
            ctypes.memmove(dst, src, count)
            self.now_ms += 0.25

        self.stream(stream).put(copy)
        return (OK,)

    def _cudaStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[Any]:
        assert mode == real.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.stream(stream).captured = []
        return (OK,)

    def _cudaStreamEndCapture(self, stream: Any) -> tuple[Any, Graph]:
        found = self.stream(stream)
        graph = Graph(found.captured)
        found.captured = None
        self.graphs += 1
        return OK, graph

    def _cudaGraphInstantiate(self, graph: Graph, flags: int) -> tuple[Any, Graph]:
        self.graphs += 1
        return OK, Graph(graph.works)

    def _cudaGraphDestroy(self, graph: Graph) -> tuple[Any]:
        self.graphs -= 1
        graph.works = None
        return (OK,)

    def _cudaGraphExecDestroy(self, graphExec: Graph) -> tuple[Any]:  # noqa: N803
        self.graphs -= 1
        graphExec.works = None
        return (OK,)

    def _cudaGraphLaunch(self, graphExec: Graph, stream: Any) -> tuple[Any]:  # noqa: N803
        found = self.stream(stream)
        assert graphExec.works is not None
        for work in graphExec.works:
            found.put(work)
        return (OK,)
