"""Images are resized as float64 with a spline of order 3, where every fourth pixel of the integers would do.

scikit-image/scikit-image#7041. Native code that releases the interpreter lock. Mended: means over blocks, in float32.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SIDE, FACTOR = 20, 1200, 4
IMAGE = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
KERNEL = np.ones((3, 3), dtype=np.float32) / 9
splines = 0


def resize(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    global splines
    small = SIDE // FACTOR
    if MENDED:
        return np.asarray(image.reshape(small, FACTOR, small, FACTOR).mean(axis=(1, 3), dtype=np.float32))
    splines += 1
    zoomed: NDArray[np.float32] = ndimage.zoom(image.astype(np.float64), 1 / FACTOR, order=3)  # fault
    return zoomed


def blur(image: NDArray[np.float32]) -> NDArray[np.float32]:
    padded = np.pad(image, 1)
    side = image.shape[0]
    parts = [padded[i : i + side, j : j + side] * KERNEL[i, j] for i in range(3) for j in range(3)]
    return np.asarray(sum(parts))


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("resize"):
                small_image = resize(IMAGE)
            with perf.range("blur"):
                for _ in range(4):
                    blur(small_image)
perf.finalize()
print(splines, "resizes by splines in float64")
