"""A server collects requests into batches of 8 and has two clients, so every batch waits until its window closes.

ray-project/ray#13389, langchain-ai/langsmith-sdk#1184. Mended: what comes alone is computed without the batcher.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from concurrent.futures import Future

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, CLIENTS, MAX_BATCH, WINDOW_S = 60, 2, 8, 0.045
RNG = np.random.default_rng(13)
WEIGHTS = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
windows = 0


def forward(rows: list[np.ndarray]) -> list[np.ndarray]:
    states = np.stack(rows)
    for _ in range(10):
        states = np.tanh(states @ WEIGHTS)
    return list(states)


class Batcher:
    """Runs the model on as many requests as come in a window."""

    def __init__(self) -> None:
        self.requests: queue.Queue[tuple[np.ndarray, Future[np.ndarray]] | None] = queue.Queue()
        self.thread = threading.Thread(target=self.serve, name="batcher")
        self.thread.start()

    def collect(self) -> list[tuple[np.ndarray, Future[np.ndarray]]]:
        global windows
        first = self.requests.get()
        if first is None:
            return []
        batch, closes = [first], time.monotonic() + WINDOW_S
        while len(batch) < MAX_BATCH:
            try:
                request = self.requests.get(timeout=max(0.0, closes - time.monotonic()))  # fault
            except queue.Empty:
                windows += 1
                break
            if request is not None:
                batch.append(request)
        return batch

    def serve(self) -> None:
        while batch := self.collect():
            for (_, future), answer in zip(batch, forward([row for row, _ in batch]), strict=True):
                future.set_result(answer)

    def submit(self, row: np.ndarray) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        self.requests.put((row, future))
        return future


def predict(batcher: Batcher, rows: list[np.ndarray]) -> list[np.ndarray]:
    if MENDED:
        return forward(rows)
    futures = [batcher.submit(row) for row in rows]
    return [future.result() for future in futures]  # fault


def featurize(number: int) -> np.ndarray:
    words = [f"w{number * position % 613}" for position in range(24000)]
    return np.resize(np.array([len(word) for word in words], np.float32), 256)


def explain(answers: list[np.ndarray]) -> list[list[int]]:
    return [sorted(range(256), key=(-row).__getitem__)[:9] for row in answers for _ in range(60)]


batcher = Batcher()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=CLIENTS):
            with perf.range("featurize"):
                rows = [featurize(index + client) for client in range(CLIENTS)]
            with perf.range("predict"):
                answers = predict(batcher, rows)
            with perf.range("explain"):
                explain(answers)
batcher.requests.put(None)
batcher.thread.join()
perf.finalize()
print(windows, "windows waited out")
