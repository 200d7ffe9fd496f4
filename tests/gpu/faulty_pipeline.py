"""A pipeline with one planted fault, or with it fixed: `perfharness diagnose` has to distinguish the two on a GPU.

perfharness launch tests/gpu/faulty_pipeline.py FAULT [--mended]
"""

from __future__ import annotations

import argparse
import hashlib
import queue
import threading
import time
from collections.abc import Callable

import torch

from perfharness import PerfRecorder

BATCHES = 24
DEVICE = "cuda"
MATRIX = 4096
COPY_FLOATS = 32 * 1024 * 1024
ITEM_READS = 100
ITEM_FLOATS = 16 << 20
"""About 20 us of GPU work a step: a wait that outlasts the Python code of a slow host, less than half of the time."""
TINY_KERNELS = 500
SLEEP_S = 0.01
SLOW_BATCHES = 4
CALLS_BEFORE = 20
"""Of the work, before the first batch: a machine that does this for the first time is slow at it."""

LARGE_FLOATS = 256 * 1024 * 1024
SOFTMAX_ROWS = 4096
SOFTMAX_COLUMNS = 1024 * 1024
HASHED_BYTES = 32 * 1024 * 1024

PERF = PerfRecorder("faulty")
AT_END: list[Callable[[], None]] = []

Work = Callable[[int], object]


def heavy() -> Work:
    """Matrix products: enough for the GPU to be the limit."""
    a = torch.randn(MATRIX, MATRIX, device=DEVICE, dtype=torch.bfloat16)

    def work(_: int) -> object:
        for _ in range(12):
            torch.mm(a, a)
        torch.cuda.synchronize()
        return None

    return work


def item(mended: bool) -> Work:
    """A value is read back after every step; mended: the steps' values stay on the GPU, and one is read back."""
    values = torch.rand(ITEM_FLOATS, device=DEVICE)

    def faulty(_: int) -> object:
        return sum(values.sum().item() for _ in range(ITEM_READS))

    def better(_: int) -> object:
        return torch.stack([values.sum() for _ in range(ITEM_READS)]).sum().item()

    return better if mended else faulty


def pageable(mended: bool) -> Work:
    """Copies from pageable memory next to some computing; mended: from pinned memory, on a stream of their own."""
    host = torch.empty(COPY_FLOATS, pin_memory=mended)
    target = torch.empty(COPY_FLOATS, device=DEVICE)
    compute, side = heavy(), torch.cuda.Stream()

    def faulty(index: int) -> object:
        target.copy_(host)
        return compute(index)

    def better(index: int) -> object:
        with torch.cuda.stream(side):
            target.copy_(host, non_blocking=True)
        return compute(index)

    return better if mended else faulty


def tiny(mended: bool) -> Work:
    """Hundreds of kernels of a microsecond; mended: the same as one replay of a CUDA graph."""
    value = torch.zeros(64, device=DEVICE)

    def faulty(_: int) -> object:
        for _ in range(TINY_KERNELS):
            value.add_(1.0)
        torch.cuda.synchronize()
        return None

    if not mended:
        return faulty
    faulty(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TINY_KERNELS):
            value.add_(1.0)

    def better(_: int) -> object:
        graph.replay()
        torch.cuda.synchronize()
        return None

    return better


def sleep(mended: bool) -> Work:
    """A sleep in Python next to real work; mended: without it."""
    compute = heavy()

    def faulty(index: int) -> object:
        time.sleep(SLEEP_S)
        return compute(index)

    return compute if mended else faulty


def first_use(mended: bool) -> Work:
    """Functions used for the first time in the first batches; the mended run excludes these (`-w 5`)."""
    del mended
    compute = heavy()
    a = torch.randn(256, 256, device=DEVICE)
    functions: list[Callable[[], object]] = [
        lambda: torch.linalg.qr(a),
        lambda: torch.fft.fft2(a),
        lambda: torch.sort(a),
        lambda: torch.conv2d(a.view(1, 1, 256, 256), a[:3, :3].reshape(1, 1, 3, 3)),
    ]
    assert len(functions) == SLOW_BATCHES

    def work(index: int) -> object:
        if index < SLOW_BATCHES:
            functions[index]()
        return compute(index)

    return work


def shared(mended: bool) -> Work:
    """Real work; the fault is how many processes are started on the GPU (`-np`)."""
    del mended
    return heavy()


def elementwise(mended: bool) -> Work:
    """Large elementwise kernels: nothing but memory; mended: matrix products in their place."""
    if mended:
        return heavy()
    value = torch.zeros(LARGE_FLOATS, device=DEVICE)

    def work(_: int) -> object:
        for _ in range(8):
            value.add_(1.0)
        torch.cuda.synchronize()
        return None

    return work


def clones(mended: bool) -> Work:
    """Copies inside the GPU, whose bytes are in a trace; mended: matrix products in their place."""
    if mended:
        return heavy()
    source = torch.zeros(LARGE_FLOATS, device=DEVICE)
    target = torch.empty_like(source)

    def work(_: int) -> object:
        for _ in range(8):
            target.copy_(source)
        torch.cuda.synchronize()
        return None

    return work


def underfilled(mended: bool) -> Work:
    """Softmax over one long row is one block; mended: as many rows as fill the GPU, a row a block."""
    rows = SOFTMAX_ROWS if mended else 1
    values = torch.randn(rows, SOFTMAX_COLUMNS // (64 if mended else 1), device=DEVICE)

    def work(_: int) -> object:
        for _ in range(8):
            torch.softmax(values, dim=1)
        torch.cuda.synchronize()
        return None

    return work


def queued(mended: bool) -> Work:
    """Each item is made by another thread, which is slower; mended: all items are there before the first batch."""
    items: queue.Queue[bytes] = queue.Queue()
    data, total = bytes(HASHED_BYTES), BATCHES + 1
    value = torch.zeros(64, device=DEVICE)
    compute: Work = heavy() if mended else lambda _: value.add_(1.0)

    def produce() -> None:
        for _ in range(total):
            with PERF.range("decode"):
                items.put(hashlib.sha256(data).digest())  # without the interpreter lock

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    if mended:
        thread.join()
    AT_END.append(thread.join)

    def work(index: int) -> object:
        items.get()
        return compute(index)

    return work


FAULTS = {
    "elementwise": elementwise, "clones": clones, "underfilled": underfilled, "queued": queued,
    "item": item, "pageable": pageable, "tiny": tiny, "sleep": sleep, "first_use": first_use, "shared": shared,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=list(FAULTS))
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--batches", type=int, default=BATCHES)
    options = parser.parse_args()
    work = FAULTS[options.fault](options.mended)
    calls = {"first_use": 0, "queued": 1}.get(options.fault, CALLS_BEFORE)  # each takes an item from the queue
    for _ in range(calls):
        work(SLOW_BATCHES)
    torch.cuda.synchronize()
    with PERF.range("pipeline"):
        for index in range(options.batches):
            with PERF.batch(index, total_items=8), PERF.range("work"):
                work(index)
    for end in AT_END:
        end()
    PERF.finalize()


if __name__ == "__main__":
    main()
