"""A server tokenizes on the event loop's default executor, whose two threads are full of slow uploads.

hatchet-dev/hatchet#4803, ethereum/trinity#1986. Mended: uploads have an executor of their own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, UPLOADS, UPLOAD_S = 60, 2, 0.025
WEIGHTS = np.random.default_rng(8).normal(0, 0.1, (256, 256)).astype(np.float32)
behind_uploads = 0


def tokenize(text: str) -> list[int]:
    return [hash(word) % 50021 for word in text.split()]


def upload(tokens: list[int]) -> int:
    time.sleep(UPLOAD_S)  # fault
    return len(tokens)


def classify(tokens: list[int]) -> np.ndarray:
    states = np.resize(np.array(tokens, np.float32) / 50021, (32, 256))
    for _ in range(40):
        states = np.tanh(states @ WEIGHTS)
    return states


async def handle(
    perf: PerfRecorder, index: int, for_uploads: Executor | None, uploads: list[asyncio.Future[int]]
) -> None:
    global behind_uploads
    loop = asyncio.get_running_loop()
    with perf.range("read"):
        text = " ".join(f"token{(index * 31 + position) % 4999}" for position in range(12000))
    with perf.range("tokenize"):
        behind_uploads += not MENDED and sum(not one.done() for one in uploads) >= UPLOADS
        tokens = await asyncio.to_thread(tokenize, text)  # fault
    with perf.range("classify"):
        classify(tokens)
    uploads.extend(loop.run_in_executor(for_uploads, upload, tokens) for _ in range(UPLOADS))


async def serve() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2, "default"))
    for_uploads = ThreadPoolExecutor(8, "uploads") if MENDED else None
    uploads: list[asyncio.Future[int]] = []
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                await handle(perf, index, for_uploads, uploads)
    perf.finalize()
    await asyncio.gather(*uploads)


asyncio.run(serve())
print(behind_uploads, "texts queued behind uploads")
