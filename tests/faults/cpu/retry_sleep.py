"""A model's first answer is always `busy`, and a decorator sleeps. Mended: a place is reserved first."""

import functools
import time

import numpy as np

from tests.faults.frame import MENDED, count, run

CHUNKS = 2
WEIGHTS = np.random.default_rng(23).normal(0, 0.1, (256, 256)).astype(np.float32)
places = []


class BusyError(Exception):
    """All places are taken."""


def retried(call):
    """Call it again when it is busy, each time after twice as long."""

    @functools.wraps(call)
    def wrapper(*arguments):
        for attempt in range(3):
            try:
                return call(*arguments)
            except BusyError:
                count()
                time.sleep(0.025 * 2**attempt)  # fault
        raise BusyError

    return wrapper


@retried
def embed_one(chunk):
    if not places:
        places.append(True)
        raise BusyError
    places.clear()
    for _ in range(6):
        chunk = np.tanh(chunk @ WEIGHTS)
    return chunk


def split(index):
    words = [len(word) for word in f"a document with number {index} ".split() * 8000]
    return [np.resize(np.array(words[start::CHUNKS], np.float32), (64, 256)) / 10 for start in range(CHUNKS)]


def embed(chunks):
    found = []
    for chunk in chunks:
        if MENDED:
            places.append(True)
        found.append(embed_one(chunk))
    return found


def store(vectors):
    return "\n".join(",".join(f"{value:.4f}" for value in vector[0]) for vector in vectors for _ in range(20))


run(50, CHUNKS, split=split, embed=embed, store=store)
