"""A client is made for each request, and with it a TLS context, which parses all certificates of the authorities.

encode/httpx#2298, Aiven-Open/astacus#204. Mended: the context is made once and given to the clients.
"""

from __future__ import annotations

import json
import ssl
import sys

import certifi

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS = 30, 2
contexts = 0


def new_context() -> ssl.SSLContext:
    global contexts
    contexts += 1
    return ssl.create_default_context(cafile=certifi.where())  # fault


class Client:
    """Asks an embedding service; the transport is left out."""

    def __init__(self, verify: ssl.SSLContext | None = None) -> None:
        self.context = verify or new_context()

    def post(self, body: bytes) -> list[float]:
        assert self.context.verify_mode is ssl.CERT_REQUIRED
        return [byte / 255 for byte in body[:1024]]


def embed(texts: list[str], shared: ssl.SSLContext | None) -> list[list[float]]:
    vectors = []
    for text in texts:
        client = Client(shared)
        vectors.append(client.post(json.dumps({"input": text}).encode()))
    return vectors


def split(index: int) -> list[str]:
    words = " ".join(f"word{(index * position) % 997}" for position in range(9000))
    return [words[: len(words) // REQUESTS] for _ in range(REQUESTS)]


def rank(vectors: list[list[float]]) -> list[int]:
    values = [value for vector in vectors for value in vector] * 4
    return sorted(range(len(values)), key=values.__getitem__)


context = new_context() if MENDED else None
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=REQUESTS):
            with perf.range("split"):
                texts = split(index)
            with perf.range("embed"):
                vectors = embed(texts, context)
            with perf.range("rank"):
                rank(vectors)
perf.finalize()
print(contexts, "contexts")
