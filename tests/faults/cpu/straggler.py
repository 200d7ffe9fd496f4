"""Documents are dealt out by number, and one of four workers gets the long ones. Mended: by length."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from tests.faults.frame import MENDED, count, network, run

WORKERS, DOCUMENTS = 4, 16


def read(index):
    short, book = "a few words of a note " * 20, "the long text of a book " * 2000
    return [f"{index} {book if position >= 12 else short}" for position in range(DOCUMENTS)]


def work(documents):
    """In a worker process."""
    found = []
    for document in documents:
        for word in document.split():
            code = 0
            for character in word:
                code = (code * 31 + ord(character)) % 50257
            found.append(code)
    return [sum(found) % 50257, len(found)]


def by_number(documents):
    size = len(documents) // WORKERS
    return [documents[start : start + size] for start in range(0, len(documents), size)]


def by_length(documents):
    parts = [[] for _ in range(WORKERS)]
    for document in sorted(documents, key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(document)
    return parts


def tokenize(documents):
    if MENDED:
        return list(pool.map(work, by_length(documents)))
    parts = by_number(documents)
    sizes = [sum(map(len, part)) for part in parts]
    count(max(sizes) > 2 * sum(sizes) / WORKERS)
    return list(pool.map(work, parts))  # fault


with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork")) as pool:
    list(pool.map(work, [[""]] * WORKERS * 4))
    run(60, DOCUMENTS, read=read, tokenize=tokenize, embed=network(64, 256, 60))
