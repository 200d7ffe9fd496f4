"""A thread of the metrics library serialises all series in one call that never gives the interpreter lock away.

open-telemetry/opentelemetry-python-contrib#1142, prometheus/client_python#559. Mended: it does so once a minute.
"""

from __future__ import annotations

import json
import os
import sys
import threading

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, LAYERS, WIDTH = 50, 12, 320
RNG = np.random.default_rng(11)


class Exporter(threading.Thread):
    """Sends all series to the collector, again and again."""

    def __init__(self, interval_s: float) -> None:
        super().__init__(name="metrics", daemon=True)
        self.series = {
            f"latency_bucket_{n}": {"labels": {"model": "m", "le": n}, "value": n * 0.5} for n in range(12000)
        }
        self.interval_s, self.exports, self.closed = interval_s, 0, threading.Event()

    def render(self) -> str:
        return json.dumps(self.series)  # fault

    def send(self, text: str) -> int:
        return len(text)

    def run(self) -> None:
        while not self.closed.wait(self.interval_s):
            self.send(self.render())
            self.exports += 1


class Model:
    def __init__(self) -> None:
        self.weights = [RNG.normal(0, 0.08, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]

    def __call__(self, states: np.ndarray) -> np.ndarray:
        for weights in self.weights:
            states = np.tanh(states @ weights)
        return states


def tokenize(text: str) -> list[int]:
    return [sum(map(ord, word)) % 5000 for word in text.split()]


exporter, model = Exporter(60.0 if MENDED else 0.002), Model()
exporter.start()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=8):
            with perf.range("tokenize"):
                tokens = tokenize(f"some words of request {index} " * 3000)
            with perf.range("infer"):
                states = model(np.resize(np.array(tokens, np.float32) / 5000, (320, WIDTH)))
            with perf.range("respond"):
                text = ",".join(f"{value:.3f}" for value in states[:40].ravel().tolist())
exporter.closed.set()
exporter.join()
perf.finalize()
print(exporter.exports, "exports")
