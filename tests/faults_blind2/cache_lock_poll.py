"""A cache of compiled kernels has one lock file for all keys, and who finds it taken sleeps 50 ms and tries again.

inducer/pyopencl#504, torch-spyre/torch-spyre#4567. Another process holds it for 10 of every 25 ms, for keys of its own.
Mended: a lock file a key.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, KERNELS, HELD_S, FREE_S, POLL_S = 50, 3, 0.010, 0.015, 0.05
polls = 0


@contextmanager
def locked(folder: Path, key: str) -> Iterator[None]:
    global polls
    file = folder / (f"{key}.lock" if MENDED else "lock")
    while True:
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            polls += 1
            time.sleep(POLL_S)  # fault
    try:
        yield
    finally:
        file.unlink()


def other_process(folder: Path, stopping: Event) -> None:
    while not stopping.is_set():
        with locked(folder, "theirs"):
            time.sleep(HELD_S)
        time.sleep(FREE_S)


def get_kernel(folder: Path, key: str) -> bytes:
    with locked(folder, key):
        file = folder / f"{key}.bin"
        if not file.exists():
            file.write_bytes(os.urandom(4096))
        return file.read_bytes()


def trace(index: int) -> list[str]:
    source = "\n".join(f"v{position} = v{position // 2} * {index}" for position in range(9000))
    return [f"kernel-{len(source) % 3}-{number}" for number in range(KERNELS)]


def execute(kernels: list[bytes]) -> np.ndarray:
    states = np.resize(np.frombuffer(b"".join(kernels), np.uint8), (64, 192)).astype(np.float32) / 255
    for _ in range(80):
        states = np.tanh(states @ WEIGHTS)
    return states


WEIGHTS = np.random.default_rng(12).normal(0, 0.1, (192, 192)).astype(np.float32)


def main() -> None:
    context = multiprocessing.get_context("fork")
    stopping = context.Event()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = context.Process(target=other_process, args=(folder, stopping))
        other.start()
        perf = PerfRecorder("faults")
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=1):
                    with perf.range("trace"):
                        keys = trace(index)
                    with perf.range("kernels"):
                        kernels = [get_kernel(folder, key) for key in keys]
                    with perf.range("execute"):
                        execute(kernels)
        perf.finalize()
        stopping.set()
        other.join()
    print(polls, "times found locked")


if __name__ == "__main__":
    main()
