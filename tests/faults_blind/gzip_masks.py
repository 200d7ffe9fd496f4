"""Masks are written with the slowest level of compression.

gwastro/pycbc#3428 (level 9 in a merge that took 24 hours), galaxyproject/KegAlign#67. Mended: level 1.
"""

from __future__ import annotations

import gzip
import io
import sys

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SLICES, SIZE = 50, 3, 256
RNG = np.random.default_rng(8)
slow = 0


class VolumeWriter:
    """Keeps the masks of a study, each compressed."""

    def __init__(self) -> None:
        self.bytes_written = 0

    def header(self, shape: tuple[int, ...]) -> bytes:
        return np.array([348, len(shape), *shape], dtype=np.int32).tobytes().ljust(352, b"\0")

    def write(self, volume: np.ndarray) -> None:
        buffer = io.BytesIO()
        buffer.write(self.header(volume.shape))
        buffer.write(volume.tobytes())
        self.bytes_written += len(self.compress(buffer.getvalue()))

    def compress(self, data: bytes) -> bytes:
        global slow
        if MENDED:
            return gzip.compress(data, compresslevel=1)
        slow += 1
        return gzip.compress(data, compresslevel=9)  # fault


def segment(volume: np.ndarray) -> np.ndarray:
    """A label per voxel."""
    smooth = sum(np.roll(volume, shift, axis) for axis in (1, 2) for shift in (-2, -1, 0, 1, 2))
    return np.digitize(smooth, [-4, -2, 0, 2, 4]).astype(np.uint8)


def normalize(volume: np.ndarray) -> np.ndarray:
    return (volume - volume.mean()) / (volume.std() + 1e-6)


writer = VolumeWriter()
study = RNG.normal(size=(SLICES, SIZE, SIZE)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=SLICES):
            with perf.range("normalize"):
                volume = normalize(np.roll(study, index, axis=2))
            with perf.range("segment"):
                mask = segment(volume)
            with perf.range("export"):
                writer.write(mask)
perf.finalize()
print(slow, "slow compressions")
