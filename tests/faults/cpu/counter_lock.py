"""Workers of a pool tokenize with the lock of a shared counter in their hand. Mended: without a counter."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from tests.faults.frame import MENDED, count, run

WORKERS, DOCUMENTS = 4, 8
context = multiprocessing.get_context("fork")
counted = context.Value("q", 0)


def work(document):
    time.sleep(0.004)  # a vocabulary that lies on another machine
    return [hash(word) % 32003 for word in document.split()]


def work_and_count(document):
    if MENDED:
        return work(document)
    with counted.get_lock():  # fault
        tokens = work(document)
        counted.value += len(tokens)
    return tokens


def tokenize(documents):
    if MENDED:
        return list(pool.map(work_and_count, documents))
    count(len(documents))
    return list(pool.map(work_and_count, documents))  # fault


def read(index):
    return [" ".join(f"w{index * position % 701}" for position in range(700)) for _ in range(DOCUMENTS)]


def pack(tokens):
    rows = np.resize(np.array([token for row in tokens for token in row], np.float32), (256, 128))
    for _ in range(60):
        rows = np.sort(rows, axis=1)[:, ::-1]


with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
    list(pool.map(work, [""] * WORKERS * 4))
    run(50, DOCUMENTS, read=read, tokenize=tokenize, pack=pack)
