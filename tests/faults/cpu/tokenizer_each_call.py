"""A tokenizer is loaded from its file for every request, two helpers below. Mended: it is cached."""

import functools
import tempfile

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.faults.frame import MENDED, count, run

WORDS = [f"{first}{second}{third}" for first in "bdgklmnprst" for second in "aeiou" for third in ("n", "sk", "rt")]


def train():
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    rng = np.random.default_rng(7)
    lines = ["".join(WORDS[at] for at in row) for row in rng.integers(0, len(WORDS), (12000, 3))]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=12000, show_progress=False))
    tokenizer.save(file.name)


@functools.lru_cache(maxsize=4 if MENDED else 0)
def load(path):
    count()
    return Tokenizer.from_file(path)  # fault


class Processor:
    """Text of one request."""

    def __init__(self):
        self.tokenizer = load(file.name)  # fault

    def ids(self, text):
        return self.tokenizer.encode(text).ids


def encode(text):
    return Processor().ids(text)


def read(index):
    return " ".join(WORDS[(index * 31 + position * 7) % len(WORDS)] for position in range(9000))[: 400 + index]


def name_entities(ids):
    scores = np.random.default_rng(len(ids)).standard_normal((96, 96))
    return float(np.abs(np.linalg.matrix_power(scores, 6)).sum())


with tempfile.NamedTemporaryFile() as file:
    train()
    run(30, read=read, encode=encode, entities=name_entities)
