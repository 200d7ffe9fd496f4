"""A cache of answers on disk writes its files under the lock that every look-up takes, in a thread of its own.

openobserve/openobserve#7654. Mended: files are written beside, and only given their name under the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 40
folder = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, folder, ignore_errors=True)
contended = 0


class DiskCache:
    """Answers by their keys."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def has(self, key: str) -> bool:
        global contended
        contended += self.lock.locked()
        with self.lock:  # fault
            return (folder / key).exists()

    def put(self, key: str, answer: bytes) -> None:
        beside = folder / f"{key}.part"
        with contextlib.nullcontext() if MENDED else self.lock, gzip.open(beside, "wb", 9) as out:  # fault
            out.write(answer)
        with self.lock:
            beside.replace(folder / key)


cache = DiskCache()
answer = np.random.default_rng(5).integers(0, 9, 600_000, dtype=np.uint8).tobytes()
stopping = threading.Event()


def write_behind() -> None:
    number = 0
    while not stopping.wait(0.06 if MENDED else 0.001):
        cache.put(f"answer_{number % 8}", answer)
        number += 1


def features(index: int) -> float:
    return float(np.linalg.svd(np.random.default_rng(index).standard_normal((80, 80)), compute_uv=False)[0])


def summarize(index: int) -> str:
    return "".join(chr(97 + (index * position) % 26) for position in range(9000))


thread = threading.Thread(target=write_behind, name="write-behind")
thread.start()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=2):
            with perf.range("features"):
                features(index)
            with perf.range("look-up"):
                cache.has(f"answer_{index % 8}")
            with perf.range("summarize"):
                summarize(index)
perf.finalize()
stopping.set()
thread.join()
print(contended, "look-ups found the lock taken")
