"""A library pins the process to one CPU when it is imported, and the pool of two threads made later shares that one.

pytorch/pytorch#99625, ContinuumIO/anaconda-issues#12022. Mended: all CPUs are given back before the pool is made.
"""

from __future__ import annotations

import os
import sys
import zlib
from concurrent.futures import Future, ThreadPoolExecutor

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, TILES = 30, 4
pinned = 0
everywhere = os.sched_getaffinity(0)


def import_library() -> None:
    os.sched_setaffinity(0, {min(everywhere)})


import_library()
if MENDED:
    os.sched_setaffinity(0, everywhere)
pool = ThreadPoolExecutor(2, thread_name_prefix="tiles")
tile = np.random.default_rng(4).integers(0, 30, 120_000, np.uint8).tobytes()


def pack(data: bytes) -> int:
    return len(zlib.compress(data, 6))


class Encoder:
    """Tiles of an image, as many at a time as there are threads."""

    def encode(self, tiles: list[bytes]) -> int:
        global pinned
        pinned += len(os.sched_getaffinity(0)) == 1
        futures: list[Future[int]] = [pool.submit(pack, one) for one in tiles]
        return sum(future.result() for future in futures)


encoder = Encoder()


def cut(index: int) -> list[bytes]:
    return [bytes([index]) + tile for _ in range(TILES)]


def describe(size: int) -> str:
    return "".join(chr(97 + (size * position) % 26) for position in range(20000))


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=TILES):
            with perf.range("cut"):
                tiles = cut(index)
            with perf.range("encode"):
                size = encoder.encode(tiles)
            with perf.range("describe"):
                describe(size)
perf.finalize()
print(pinned, "batches on one CPU")
