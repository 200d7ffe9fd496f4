"""Workers of a pool count tokens in a shared value and hold its lock while they tokenize, so one works at a time.

sambanova/generative_data_prep#115. Mended: each counts for itself, and the sum is taken at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.sharedctypes import Synchronized

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, WORKERS, DOCUMENTS, REMOTE_S = 50, 4, 8, 0.004
counted: Synchronized[int] | None = None
under_lock = 0


def share(value: Synchronized[int]) -> None:
    global counted
    counted = value


def tokenize(document: str) -> list[int]:
    time.sleep(REMOTE_S)  # a vocabulary that lies on another machine
    return [hash(word) % 32003 for word in document.split()]


def tokenize_and_count(document: str) -> list[int]:
    assert counted is not None
    if MENDED:
        return tokenize(document)
    with counted.get_lock():  # fault
        tokens = tokenize(document)
        counted.value += len(tokens)
    return tokens


def tokenize_all(pool: Executor, documents: list[str]) -> list[list[int]]:
    global under_lock
    if MENDED:
        return list(pool.map(tokenize_and_count, documents))
    under_lock += len(documents)
    return list(pool.map(tokenize_and_count, documents))  # fault


def read(index: int) -> list[str]:
    return [" ".join(f"w{index * position % 701}" for position in range(700)) for _ in range(DOCUMENTS)]


def pack(tokens: list[list[int]]) -> np.ndarray:
    rows = np.resize(np.array([token for row in tokens for token in row], np.float32), (256, 128))
    for _ in range(60):
        rows = np.sort(rows, axis=1)[:, ::-1]
    return rows


def main() -> None:
    context = multiprocessing.get_context("fork")
    value: Synchronized[int] = context.Value("q", 0)
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=share, initargs=(value,)) as pool:
        list(pool.map(tokenize, [""] * WORKERS * 4))
        perf = PerfRecorder("faults")
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=DOCUMENTS):
                    with perf.range("read"):
                        documents = read(index)
                    with perf.range("tokenize"):
                        tokens = tokenize_all(pool, documents)
                    with perf.range("pack"):
                        pack(tokens)
        perf.finalize()
    print(under_lock, "documents under the lock")


if __name__ == "__main__":
    main()
