"""The images of a request are fetched by a pool that somebody has given one thread, so one after the other.

sgl-project/sglang#35349. Mended: as many threads as a request has images.
"""

from __future__ import annotations

import sys
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, IMAGES, ROUND_TRIP_S = 25, 8, 0.009
PIXELS = zlib.compress(np.random.default_rng(9).integers(0, 40, 60_000, dtype=np.uint8).tobytes())
pool = ThreadPoolExecutor(max_workers=IMAGES if MENDED else 1, thread_name_prefix="images")
queued = 0


def fetch(url: str) -> bytes:  # fault
    time.sleep(ROUND_TRIP_S)  # the store answers
    return PIXELS


def load(url: str) -> np.ndarray:
    if MENDED:
        time.sleep(ROUND_TRIP_S)
        return np.frombuffer(zlib.decompress(PIXELS), np.uint8)
    return np.frombuffer(zlib.decompress(fetch(url)), np.uint8)  # fault


class Processor:
    """Images of a request, in its order."""

    def submit(self, urls: list[str]) -> list[Future[np.ndarray]]:
        global queued
        queued += max(len(urls) - pool._max_workers, 0)
        return [pool.submit(load, url) for url in urls]

    def __call__(self, urls: list[str]) -> np.ndarray:
        return np.stack([future.result() for future in self.submit(urls)])  # fault


def template(index: int) -> str:
    return "\n".join(f"<image>{index * position % 97}</image>" for position in range(6000))


def embed(pixels: np.ndarray) -> float:
    small = pixels[:, :4096].astype(np.float32).reshape(IMAGES * 32, -1)
    return float((small @ small.T).sum())


processor = Processor()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=IMAGES):
            with perf.range("template"):
                template(index)
            with perf.range("images"):
                pixels = processor([f"image/{index}/{number}" for number in range(IMAGES)])
            with perf.range("embed"):
                embed(pixels)
perf.finalize()
print(queued, "images had to wait for a thread")
