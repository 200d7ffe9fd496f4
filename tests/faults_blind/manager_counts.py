"""Statistics are shared through a manager's dictionary: every reading and writing of one is a message to its process.

flav-io/flavio#123, Wireless-Innovation-Forum/Spectrum-Access-System#731. Mended: counted here, shared once a batch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import MutableMapping

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ITEMS, LABELS = 50, 32, 20
RNG = np.random.default_rng(14)
messages = 0


class Statistics:
    """How often each label was predicted, for all workers."""

    def __init__(self, shared: MutableMapping[str, int]) -> None:
        self.shared = shared
        self.pending: Counter[str] = Counter()

    def count(self, label: str) -> None:
        global messages
        if MENDED:
            self.pending[label] += 1
            return
        messages += 2
        self.shared[label] = self.shared.get(label, 0) + 1  # fault

    def flush(self) -> None:
        global messages
        if self.pending:
            self.shared.update(self.pending)
            self.pending.clear()
            messages += 1


def classify(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    for _ in range(8):
        features = np.tanh(features @ weights)
    return np.argsort(features, axis=1)[:, -LABELS:]


def report(best: np.ndarray, statistics: Statistics) -> None:
    for row in best.tolist():
        for label in row:
            statistics.count(f"label {label}")
    statistics.flush()


def main() -> None:
    weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
    with multiprocessing.get_context("fork").Manager() as manager:
        statistics = Statistics(manager.dict())
        perf = PerfRecorder("faults")
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=ITEMS):
                    with perf.range("prepare"):
                        features = RNG.normal(size=(ITEMS * 16, 256)).astype(np.float32)
                    with perf.range("classify"):
                        best = classify(features, weights)
                    with perf.range("report"):
                        report(best[:ITEMS], statistics)
        perf.finalize()
    print(messages, "messages")


if __name__ == "__main__":
    main()
