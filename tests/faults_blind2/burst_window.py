"""A loader's thread fetches four batches with one call and hands out none of them until all are there.

marin-community/marin#7474. The queue is full at the start, so the first batches come at once. Mended: eight threads
fetch, each a batch, so that storage is asked for more than one at a time.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, WINDOW, READ_S = 80, 4, 0.035
windows = 0


class Storage:
    """Answers after a while, and in order."""

    def get_batch(self, numbers: list[int]) -> list[np.ndarray]:
        return [self.read(number) for number in numbers]  # fault

    def read(self, number: int) -> np.ndarray:
        time.sleep(READ_S)  # fault
        return np.full((64, 256), number % 7 / 7, np.float32)


class Loader:
    """Iterates over batches that are fetched ahead."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.ready: queue.Queue[np.ndarray] = queue.Queue(2 * WINDOW)
        self.numbers = iter(range(BATCHES))
        self.lock = threading.Lock()
        targets = [self.fetch_each] * 2 * WINDOW if MENDED else [self.fetch_windows]
        self.threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def fetch_windows(self) -> None:
        global windows
        for first in range(0, BATCHES, WINDOW):
            for batch in self.storage.get_batch(list(range(first, first + WINDOW))):
                self.ready.put(batch)
            windows += 1

    def fetch_each(self) -> None:
        while True:
            with self.lock:
                number = next(self.numbers, None)
            if number is None:
                return
            self.ready.put(self.storage.read(number))

    def __iter__(self) -> Iterator[np.ndarray]:
        for _ in range(BATCHES):
            yield self.ready.get()  # fault


def augment(batch: np.ndarray) -> np.ndarray:
    noise = [((position * 7919) % 1013) / 1013 for position in range(8000)]
    return batch + np.resize(np.array(noise, np.float32), batch.shape)


def train_step(batch: np.ndarray) -> np.ndarray:
    for _ in range(40):
        batch = np.tanh(batch @ WEIGHTS)
    return batch


WEIGHTS = np.random.default_rng(4).normal(0, 0.1, (256, 256)).astype(np.float32)
loader = Loader(Storage())
time.sleep(0.3)  # while the model is built
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    batches = iter(loader)
    for index in range(BATCHES):
        with perf.batch(index, total_items=64):
            with perf.range("next"):
                batch = next(batches)
            with perf.range("augment"):
                batch = augment(batch)
            with perf.range("step"):
                train_step(batch)
perf.finalize()
print(windows, "windows fetched as a whole")
