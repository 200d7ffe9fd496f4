"""Volumes come with their channels last in memory, and each plane is normalized through a view across the stride.

mehta-lab/recOrder#322, numpy/numpy#16498. Mended: the planes are made contiguous once, when the volume is loaded.
"""

from __future__ import annotations

import sys

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, PLANES, SIDE = 30, 64, 160
source = np.random.default_rng(6).random((SIDE, SIDE, PLANES)).astype(np.float32)
strided = 0


def acquire(index: int) -> np.ndarray:
    source[index % SIDE] += 0.01
    return source


class Reader:
    """Volumes as the reconstruction wants them, plane by plane."""

    def __init__(self) -> None:
        self.planes = np.empty((PLANES, SIDE, SIDE), np.float32)

    def view(self, volume: np.ndarray) -> np.ndarray:
        planes = volume.transpose(2, 0, 1)
        if MENDED:
            np.copyto(self.planes, planes)
            return self.planes
        return planes


def normalize(plane: np.ndarray) -> float:
    global strided
    strided += not plane.flags.c_contiguous
    low, high = plane.min(), plane.max()  # fault
    scaled = (plane - low) / (high - low)  # fault
    return float(np.sqrt(scaled).mean())  # fault


def reconstruct(values: list[float]) -> float:
    table = np.resize(np.array(values), (72, 72)) + np.eye(72)
    return float(np.linalg.svd(table, compute_uv=False)[0])


reader = Reader()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=PLANES):
            with perf.range("acquire"):
                planes = reader.view(acquire(index))
            with perf.range("normalize"):
                values = [normalize(plane) for plane in planes]
            with perf.range("reconstruct"):
                reconstruct(values)
perf.finalize()
print(strided, "planes across the stride")
