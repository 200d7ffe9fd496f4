"""Frames go to a pool of processes as arrays, and masks come back: both are pickled and copied, the work is small.

joblib/joblib#1094. Mended: the frames lie in shared memory, and only numbers go there and back.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, FRAMES, SHAPE = 25, 4, (720, 1280, 3)
memory = SharedMemory(create=True, size=FRAMES * int(np.prod(SHAPE)))
shared: np.ndarray = np.ndarray((FRAMES, *SHAPE), np.uint8, memory.buf)
megabytes = 0


def brighten(frame: np.ndarray) -> np.ndarray:
    frame[::8, ::8] |= 3
    return frame


def brighten_shared(number: int) -> int:
    brighten(shared[number])
    return number


class Preprocessor:
    """Frames of a batch, one a process."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(2, multiprocessing.get_context("fork"))

    def run(self, frames: list[np.ndarray]) -> list[np.ndarray]:
        global megabytes
        if MENDED:
            return [shared[number] for number in self.pool.map(brighten_shared, range(FRAMES))]
        megabytes += 2 * sum(frame.nbytes for frame in frames) >> 20
        futures = [self.pool.submit(brighten, frame) for frame in frames]  # fault
        return [future.result() for future in futures]  # fault


def capture(index: int) -> list[np.ndarray]:
    for number in range(FRAMES):
        shared[number, ::3, ::3] = (index * number) % 251
    return list(shared)


def infer(frames: list[np.ndarray]) -> float:
    small = np.stack([frame[::12, ::12, 0] for frame in frames]).reshape(FRAMES * 60, -1).astype(np.float32)
    for _ in range(40):
        small = np.tanh(small @ small.T @ small / 1e7)
    return float(small.sum())


def main() -> None:
    preprocessor = Preprocessor()
    preprocessor.run(capture(0))
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=FRAMES):
                with perf.range("capture"):
                    frames = capture(index)
                with perf.range("preprocess"):
                    frames = preprocessor.run(frames)
                with perf.range("infer"):
                    infer(frames)
    perf.finalize()
    preprocessor.pool.shutdown()
    memory.unlink()
    print(megabytes, "MB pickled")


if __name__ == "__main__":
    main()
