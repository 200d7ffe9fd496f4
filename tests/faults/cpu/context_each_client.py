"""Each request makes a TLS context, which parses all certificates. Mended: one context for all."""

import json
import ssl

import certifi

from tests.faults.frame import MENDED, count, run

REQUESTS = 2


def new_context():
    count()
    return ssl.create_default_context(cafile=certifi.where())  # fault


class Client:
    """Asks an embedding service; the transport is left out."""

    def __init__(self):
        self.context = shared or new_context()

    def post(self, body):
        return [byte / 255 for byte in body[:1024]]


def embed(texts):
    return [Client().post(json.dumps({"input": text}).encode()) for text in texts]


def split(index):
    words = " ".join(f"word{(index * position) % 997}" for position in range(9000))
    return [words[: len(words) // REQUESTS] for _ in range(REQUESTS)]


def rank(vectors):
    values = [value for vector in vectors for value in vector] * 4
    return sorted(range(len(values)), key=values.__getitem__)


shared = new_context() if MENDED else None
run(30, REQUESTS, split=split, embed=embed, rank=rank)
