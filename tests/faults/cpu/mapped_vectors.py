"""Vectors of a mapped file that is not in memory: every page waits for the disk. Mended: read before."""

import mmap
import os
import tempfile

import numpy as np

from tests.faults.frame import MENDED, count, run

LOOKUPS, VECTORS, WIDTH = 800, 60_000, 1024
RNG = np.random.default_rng(28)
USERS = RNG.normal(size=(WIDTH, 64)).astype(np.float32)


def open_vectors(file):
    block = RNG.normal(size=(1000, WIDTH)).astype(np.float32).tobytes()
    for _ in range(VECTORS // 1000):
        file.write(block)
    file.flush()
    os.fsync(file.fileno())
    if MENDED:
        file.seek(0)
        return np.frombuffer(file.read(), np.float32).reshape(VECTORS, WIDTH)
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.frombuffer(mapped, np.float32).reshape(VECTORS, WIDTH)


def candidates(user):
    return np.sort(np.random.default_rng(user).choice(VECTORS, LOOKUPS, replace=False))


def lookup(items):
    if MENDED:
        return vectors[items]
    count(len(items))
    return vectors[items]  # fault


def score(found):
    return np.tanh(found @ USERS)[:, 0]


def explain(scores):
    return [f"item with {value:.4f}" for _ in range(30) for value in np.sort(scores)[::-1].tolist()]


with tempfile.NamedTemporaryFile() as file:
    vectors = open_vectors(file)
    run(40, LOOKUPS, candidates=candidates, lookup=lookup, score=score, explain=explain)
