"""A tokenizer joins the pieces of all words by `sum(lists, [])`, which copies the list so far for each word.

huggingface/transformers#1830. Mended: the pieces are chained. Beside it, innocent: padding and a table look-up.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, WORDS = 24, 3600
WORD_PIECES = {f"word{i}": [i, i + 1, i + 2, i + 3] for i in range(500)}
TABLE = np.random.default_rng(1).normal(size=(1000, 96)).astype(np.float32)
copied = 0


def tokenize(words: list[str]) -> list[int]:
    global copied
    pieces = [WORD_PIECES[word] for word in words]
    if MENDED:
        return list(itertools.chain.from_iterable(pieces))
    copied += len(words)
    return sum(pieces, [])  # noqa: RUF017  # fault


def pad(tokens: list[int], width: int = 16384) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    row = np.zeros(width, dtype=np.int64)
    row[: len(tokens)] = tokens[:width]
    return row


perf = PerfRecorder("faults")
text = [f"word{(i * 7919) % 500}" for i in range(WORDS)]
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=WORDS):
            with perf.range("tokenize"):
                ids = tokenize(text)
            with perf.range("pad"):
                padded = pad(ids)
            with perf.range("embed"):
                for _ in range(6):
                    TABLE[padded % 1000].sum(axis=0)
perf.finalize()
print(copied, "lists copied")
