"""A service that names entities loads its tokenizer from a file for every request, two helpers below the stage.

maziyarpanahi/openmed#443. Mended: the cache of the loader has room for some.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 30
WORDS = [f"{first}{second}{third}" for first in "bdgklmnprst" for second in "aeiou" for third in ("n", "sk", "rt")]
folder = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, folder, ignore_errors=True)
loads = 0


def train(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    rng = np.random.default_rng(7)
    lines = ["".join(WORDS[at] for at in row) for row in rng.integers(0, len(WORDS), (12000, 3))]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=12000, show_progress=False))
    tokenizer.save(str(path))


@functools.lru_cache(maxsize=4 if MENDED else 0)
def load(path: str) -> Tokenizer:
    global loads
    loads += 1
    return Tokenizer.from_file(path)  # fault


class Processor:
    """Text of one request."""

    def __init__(self, path: str) -> None:
        self.tokenizer = load(path)  # fault

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)


def process(text: str) -> list[int]:
    return Processor(str(folder / "tokenizer.json")).ids(text)


def read_request(index: int) -> str:
    return " ".join(WORDS[(index * 31 + position * 7) % len(WORDS)] for position in range(9000))[: 400 + index]


def name_entities(ids: list[int]) -> float:
    scores = np.random.default_rng(len(ids)).standard_normal((96, 96))
    return float(np.abs(np.linalg.matrix_power(scores, 6)).sum())


train(folder / "tokenizer.json")
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("read"):
                text = read_request(index)
            with perf.range("encode"):
                ids = process(text)
            with perf.range("entities"):
                name_entities(ids)
perf.finalize()
print(loads, "tokenizers loaded")
