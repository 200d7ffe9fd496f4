"""Every prediction is a transaction of its own in SQLite, which waits for the disk each time.

OfflineIMAP/offlineimap#390, zeek/zeek#1870. Mended: one transaction for the whole run.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ITEMS = 50, 8
RNG = np.random.default_rng(4)
commits = 0


class PredictionStore:
    """What was predicted, for the audit."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.connection.execute("CREATE TABLE predictions (item INTEGER, label TEXT, score REAL)")
        self.connection.commit()

    def add(self, item: int, label: str, score: float) -> None:
        self.connection.execute("INSERT INTO predictions VALUES (?, ?, ?)", (item, label, score))
        self.saved()

    def saved(self) -> None:
        global commits
        if not MENDED:
            self.connection.commit()  # fault
            commits += 1

    def close(self) -> None:
        self.connection.commit()
        self.connection.close()


def classify(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    for _ in range(40):
        features = np.tanh(features @ weights)
    return features


def prepare() -> np.ndarray:
    image = RNG.normal(size=(ITEMS * 16, 256)).astype(np.float32)
    return (image - image.mean()) / image.std()


weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
perf = PerfRecorder("faults")
with tempfile.TemporaryDirectory() as folder:
    store = PredictionStore(Path(folder) / "predictions.db")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=ITEMS):
                with perf.range("prepare"):
                    batch = prepare()
                with perf.range("classify"):
                    scores = classify(batch, weights)
                with perf.range("store"):
                    for item in range(ITEMS):
                        store.add(index * ITEMS + item, f"label {item}", float(scores[item].max()))
    store.close()
perf.finalize()
print(commits, "commits")
