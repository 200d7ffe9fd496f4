"""A model's generator is iterated from an event loop through its executor: each token goes to a thread and back.

mlrun/storey#633, Kludex/starlette#462. Mended: 64 tokens a hop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, TOKENS = 30, 256
hops = 0


def generate(prompt: int) -> Iterator[str]:
    for position in range(TOKENS):
        yield f"t{prompt * position % 31}"


async def iterate_in_threads(tokens: Iterator[str]) -> AsyncIterator[str]:
    global hops
    each = 64 if MENDED else 1
    while chunk := await asyncio.to_thread(lambda: list(itertools.islice(tokens, each))):  # fault
        hops += 1
        for token in chunk:
            yield token


class Responder:
    """The stream of one answer."""

    def __init__(self) -> None:
        self.sent = 0

    async def send(self, token: str) -> None:
        self.sent += len(token)

    async def stream(self, prompt: int) -> None:
        async for token in iterate_in_threads(generate(prompt)):  # fault
            await self.send(token)


def read_prompt(index: int) -> int:
    return sum((index * position) % 11 for position in range(40000)) % 1009


def moderate(count: int) -> float:
    table = np.full((80, 80), 0.01) * count + np.eye(80)
    return float(np.linalg.svd(table, compute_uv=False)[0])


async def serve() -> None:
    perf = PerfRecorder("faults")
    responder = Responder()
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=TOKENS):
                with perf.range("prompt"):
                    prompt = read_prompt(index)
                with perf.range("stream"):
                    await responder.stream(prompt)
                with perf.range("moderate"):
                    moderate(responder.sent)
    perf.finalize()


asyncio.run(serve())
print(hops, "hops to a thread")
