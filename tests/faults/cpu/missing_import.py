"""Every call tries to import an accelerator that nobody has. Mended: it is tried once."""

import functools

import numpy as np

from tests.faults.frame import MENDED, count, run

SENTENCES = 90


def find_splitter():
    count()
    try:
        from fast_splitter_that_nobody_has import split  # fault
    except ImportError:
        return str.split
    return split


if MENDED:
    find_splitter = functools.lru_cache(find_splitter)


def words(sentence):
    return [word.strip(".").lower() for word in find_splitter()(sentence)]


def read(index):
    texts = range(SENTENCES)
    return [" ".join(f"Word{(index * number + position) % 997}." for position in range(40)) for number in texts]


def normalize(sentences):
    return [words(sentence) for sentence in sentences]


def embed(sentences):
    table = np.random.default_rng(len(sentences)).standard_normal((SENTENCES, 200)).astype(np.float32)
    for _ in range(3):
        table = np.tanh(table @ table.T @ table / 9e3)


run(40, SENTENCES, read=read, normalize=normalize, embed=embed)
