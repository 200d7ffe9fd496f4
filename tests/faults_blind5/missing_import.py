"""A helper tries to import an optional accelerator on every call; Python does not remember that there is none.

matrixarkai/TemporalStore#1303. Mended: it is tried once.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SENTENCES = 40, 90
attempts = 0


def split_in_python(text: str) -> list[str]:
    return text.split()


def find_splitter() -> Callable[[str], list[str]]:
    global attempts
    attempts += 1
    try:
        from fast_splitter_that_nobody_has import split  # type: ignore[import-not-found]  # fault
    except ImportError:
        return split_in_python
    return split


if MENDED:
    find_splitter = functools.lru_cache(find_splitter)


class Normalizer:
    """Words of a sentence."""

    def words(self, sentence: str) -> list[str]:
        return [word.strip(".").lower() for word in find_splitter()(sentence)]


normalizer = Normalizer()


def read(index: int) -> list[str]:
    return [
        " ".join(f"Word{(index * number + position) % 997}." for position in range(40)) for number in range(SENTENCES)
    ]


def embed(sentences: list[list[str]]) -> float:
    table = np.random.default_rng(len(sentences)).standard_normal((SENTENCES, 200)).astype(np.float32)
    for _ in range(3):
        table = np.tanh(table @ table.T @ table / 9e3)
    return float(table.sum())


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=SENTENCES):
            with perf.range("read"):
                sentences = read(index)
            with perf.range("normalize"):
                words = [normalizer.words(sentence) for sentence in sentences]
            with perf.range("embed"):
                embed(words)
perf.finalize()
print(attempts, "attempts to import")
