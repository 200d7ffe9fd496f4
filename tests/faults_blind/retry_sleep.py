"""A model's first answer is always `busy`, and a decorator sleeps before it asks again.

HumanSignal/Adala#350, microsoft/pai#1026. Mended: the client asks for a place first, and is never told `busy`.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, CHUNKS = 50, 2
T = TypeVar("T")
RNG = np.random.default_rng(23)
sleeps = 0


class BusyError(Exception):
    """All places are taken."""


def retried(delay_s: float, attempts: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Call it again when it is busy, each time after twice as long."""

    def decorate(call: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(call)
        def wrapper(*arguments: object) -> T:
            global sleeps
            for attempt in range(attempts):
                try:
                    return call(*arguments)
                except BusyError:  # noqa: PERF203
                    sleeps += 1
                    time.sleep(delay_s * 2**attempt)  # fault
            raise BusyError

        return wrapper

    return decorate


class Backend:
    """A model with one place, which a request has to find free."""

    def __init__(self) -> None:
        self.weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
        self.has_place = False

    def reserve(self) -> None:
        self.has_place = True

    @retried(delay_s=0.025, attempts=3)
    def embed(self, chunk: np.ndarray) -> np.ndarray:
        if not self.has_place:
            self.reserve()
            raise BusyError
        self.has_place = False
        for _ in range(6):
            chunk = np.tanh(chunk @ self.weights)
        return chunk


def split(text: str) -> list[np.ndarray]:
    words = [len(word) for word in text.split()]
    return [np.resize(np.array(words[start::CHUNKS], np.float32), (64, 256)) / 10 for start in range(CHUNKS)]


def embed_all(backend: Backend, chunks: list[np.ndarray]) -> list[np.ndarray]:
    found = []
    for chunk in chunks:
        if MENDED:
            backend.reserve()
        found.append(backend.embed(chunk))
    return found


def store(vectors: list[np.ndarray]) -> str:
    return "\n".join(",".join(f"{value:.4f}" for value in vector[0]) for vector in vectors for _ in range(20))


backend = Backend()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=CHUNKS):
            with perf.range("split"):
                chunks = split(f"a document with number {index} " * 8000)
            with perf.range("embed"):
                vectors = embed_all(backend, chunks)
            with perf.range("store"):
                store(vectors)
perf.finalize()
print(sleeps, "sleeps")
