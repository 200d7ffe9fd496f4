"""Embeddings are kept in float16, which numpy multiplies one number at a time. Mended: float32."""

import numpy as np

from tests.faults.frame import MENDED, count, run

DOCUMENTS, WIDTH = 25_000, 192
RNG = np.random.default_rng(9)
TABLE = RNG.normal(size=(5000, WIDTH)).astype(np.float32)
EXACT = RNG.normal(size=(DOCUMENTS, WIDTH)).astype(np.float32)
COMPACT = EXACT.astype(np.float16)


def embed(index):
    return [embed_one(f"question {index} about {topic} " * 2000) for topic in range(4)]


def embed_one(text):
    return TABLE[[hash(word) % len(TABLE) for word in text.split()]].mean(0)


def search(queries):
    return [search_one(query, 500) for query in queries]


def search_one(query, number):
    scores = similarities(query)
    best = np.argpartition(scores, -number)[-number:]
    return best[np.argsort(scores[best])][::-1]


def similarities(query):
    if MENDED:
        return EXACT @ query
    count()
    return COMPACT @ query.astype(np.float16)  # fault


def compose(found):
    return ["\n".join(f"[{n}] passage {n} of the corpus" for n in documents.tolist()) for documents in found]


run(40, 4, embed=embed, search=search, compose=compose)
