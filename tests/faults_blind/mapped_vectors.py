"""Vectors are read out of a mapped file that is not in memory, and every page of it waits for the disk.

Comfy-Org/ComfyUI#2288, sgl-project/sglang#7469. Mended: the file is read into memory before the service starts.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, LOOKUPS, VECTORS, WIDTH = 40, 800, 60_000, 1024
RNG = np.random.default_rng(28)
from_disk = 0


class VectorFile:
    """Embeddings of items, a page each; a machine with little memory does not keep them."""

    def __init__(self, path: Path) -> None:
        block = RNG.normal(size=(1000, WIDTH)).astype(np.float32).tobytes()
        with path.open("wb") as file:
            for _ in range(VECTORS // 1000):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        self.file = path.open("rb")
        if MENDED:
            self.vectors = np.frombuffer(self.file.read(), np.float32).reshape(VECTORS, WIDTH)
        else:
            self.map = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
            self.map.madvise(mmap.MADV_RANDOM)
            self.vectors = np.frombuffer(self.map, np.float32).reshape(VECTORS, WIDTH)
            os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def take(self, items: np.ndarray) -> np.ndarray:
        global from_disk
        if MENDED:
            return self.vectors[items]
        from_disk += len(items)
        return self.vectors[items]  # fault


def candidates(user: int) -> np.ndarray:
    return np.sort(np.random.default_rng(user).choice(VECTORS, LOOKUPS, replace=False))


def score(vectors: np.ndarray, user: np.ndarray) -> np.ndarray:
    return np.tanh(vectors @ user)


def explain(scores: np.ndarray) -> list[str]:
    return [f"item with {value:.4f}" for _ in range(30) for value in np.sort(scores)[::-1].tolist()]


with tempfile.TemporaryDirectory() as folder:
    store = VectorFile(Path(folder) / "vectors.bin")
    user_vectors = RNG.normal(size=(WIDTH, 64)).astype(np.float32)
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=LOOKUPS):
                with perf.range("candidates"):
                    items = candidates(index)
                with perf.range("lookup"):
                    vectors = store.take(items)
                with perf.range("score"):
                    scores = score(vectors, user_vectors)
                with perf.range("explain"):
                    explain(scores[:, 0])
    perf.finalize()
print(from_disk, "vectors from the disk")
