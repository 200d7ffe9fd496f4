"""A caller looks whether its result is there only after a wait, so a result that came before it wakes nobody.

open-telemetry/opentelemetry-python#949. Mended: it looks first, and waits for a predicate.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, TIMEOUT_S = 30, 0.03
missed = 0


class Embedder:
    """Works on requests in a thread of its own, the embeddings of one request while the caller parses it."""

    def __init__(self) -> None:
        self.requests: queue.Queue[int | None] = queue.Queue()
        self.done = threading.Condition()
        self.results: dict[int, float] = {}
        self.thread = threading.Thread(target=self.work, name="embedder")
        self.thread.start()

    def work(self) -> None:
        while (request := self.requests.get()) is not None:
            values = np.random.default_rng(request).standard_normal((48, 48))
            result = float(np.linalg.svd(values, compute_uv=False)[0])
            with self.done:
                self.results[request] = result
                self.done.notify_all()

    def result(self, request: int) -> float:
        global missed
        with self.done:
            if MENDED:
                self.done.wait_for(lambda: request in self.results)
            else:
                began = time.monotonic()
                while not self.done.wait(TIMEOUT_S):  # fault
                    if request in self.results:
                        missed += time.monotonic() - began >= TIMEOUT_S
                        break
            return self.results.pop(request)


def parse(index: int) -> int:
    return sum(hash(f"{index}:{position}") & 7 for position in range(30000))


def search(vector: float) -> float:
    table = np.full((90, 90), vector / 100) + np.eye(90)
    return float(np.linalg.svd(table, compute_uv=False)[0])


embedder = Embedder()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("parse"):
                embedder.requests.put(index)
                parse(index)
            with perf.range("embedding"):
                vector = embedder.result(index)
            with perf.range("search"):
                search(vector)
perf.finalize()
embedder.requests.put(None)
embedder.thread.join()
print(missed, "results were there before the wait began")
