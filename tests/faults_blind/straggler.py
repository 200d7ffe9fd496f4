"""Documents are dealt out to worker processes by their number, and one of four workers gets all the long ones.

hvasbath/beat#86, perone/Pyevolve#73. Mended: dealt out so that every worker gets as much text.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import Executor, ProcessPoolExecutor

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, WORKERS, DOCUMENTS = 60, 4, 16
RNG = np.random.default_rng(15)
uneven = 0


def make_documents(number: int) -> list[str]:
    """Sorted by source; those of the last source are books."""
    short, book = "a few words of a note " * 20, "the long text of a book " * 2000
    return [f"{number} {book if position >= 12 else short}" for position in range(DOCUMENTS)]


def tokenize(documents: list[str]) -> list[int]:
    """In a worker process."""
    found = []
    for document in documents:
        for word in document.split():
            code = 0
            for character in word:
                code = (code * 31 + ord(character)) % 50257
            found.append(code)
    return [sum(found) % 50257, len(found)]


def by_number(documents: list[str]) -> list[list[str]]:
    size = len(documents) // WORKERS
    return [documents[start : start + size] for start in range(0, len(documents), size)]


def by_length(documents: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[] for _ in range(WORKERS)]
    for document in sorted(documents, key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(document)
    return parts


def tokenize_all(pool: Executor, documents: list[str]) -> list[list[int]]:
    global uneven
    if MENDED:
        return list(pool.map(tokenize, by_length(documents)))
    parts = by_number(documents)
    sizes = [sum(map(len, part)) for part in parts]
    uneven += max(sizes) > 2 * sum(sizes) / WORKERS
    return list(pool.map(tokenize, parts))  # fault


def embed(tokens: list[list[int]], weights: np.ndarray) -> np.ndarray:
    states = np.resize(np.array(tokens, np.float32) / 50257, (64, 256))
    for _ in range(60):
        states = np.tanh(states @ weights)
    return states


def main() -> None:
    weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(tokenize, [[""]] * WORKERS * 4))
        perf = PerfRecorder("faults")
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=DOCUMENTS):
                    with perf.range("read"):
                        documents = make_documents(index)
                    with perf.range("tokenize"):
                        tokens = tokenize_all(pool, documents)
                    with perf.range("embed"):
                        embed(tokens, weights)
        perf.finalize()
    print(uneven, "batches with uneven parts")


if __name__ == "__main__":
    main()
