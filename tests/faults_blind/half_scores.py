"""Embeddings are kept in float16 to save memory; numpy multiplies those one number at a time.

numpy/numpy#11590, jax-ml/jax#7431. Mended: float32.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, DOCUMENTS, WIDTH = 40, 25_000, 192
RNG = np.random.default_rng(9)
slow = 0


class VectorIndex:
    """Documents by their embedding."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.exact = vectors.astype(np.float32)
        self.compact = vectors.astype(np.float16)

    def similarities(self, query: np.ndarray) -> np.ndarray:
        global slow
        if MENDED:
            return self.exact @ query
        slow += 1
        return self.compact @ query.astype(np.float16)  # fault

    def search(self, query: np.ndarray, count: int) -> np.ndarray:
        scores = self.similarities(query)
        best = np.argpartition(scores, -count)[-count:]
        return best[np.argsort(scores[best])][::-1]


def embed(text: str, table: np.ndarray) -> np.ndarray:
    rows = [hash(word) % len(table) for word in text.split()]
    return np.asarray(table[rows].mean(0))


def compose(documents: np.ndarray) -> str:
    return "\n".join(f"[{number}] passage {number} of the corpus" for number in documents.tolist())


table = RNG.normal(size=(5000, WIDTH)).astype(np.float32)
index_of_documents = VectorIndex(RNG.normal(size=(DOCUMENTS, WIDTH)))
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=4):
            with perf.range("embed"):
                queries = [embed(f"question {index} about {topic} " * 2000, table) for topic in range(4)]
            with perf.range("search"):
                found = [index_of_documents.search(query, 500) for query in queries]
            with perf.range("compose"):
                prompts = [compose(documents) for documents in found]
perf.finalize()
print(slow, "slow products")
