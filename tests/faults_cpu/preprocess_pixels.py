"""Frames are turned into grey values pixel by pixel, in Python, before the model runs.

kristjankorjus/Replicating-DeepMind#4. Mended: one look-up for all pixels. Beside it, innocent: crop and an activation.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, HEIGHT, WIDTH = 24, 210, 160
PALETTE = np.arange(256, dtype=np.uint8)[::-1].copy()
FRAME = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)
pixels_in_python = 0


def to_grey(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    global pixels_in_python
    if MENDED:
        return np.asarray(PALETTE[frame])
    grey = np.empty_like(frame)
    for i in range(HEIGHT):  # fault
        for j in range(WIDTH):
            grey[i, j] = PALETTE[frame[i, j]]
    pixels_in_python += HEIGHT * WIDTH
    return grey


def crop(grey: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.asarray(grey[33:193].astype(np.float32) / np.float32(255))


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("grey"):
                grey = to_grey(FRAME)
            with perf.range("crop"):
                image = crop(grey)
            with perf.range("infer"):
                for _ in range(20):
                    np.tanh(image)
perf.finalize()
print(pixels_in_python, "pixels in Python")
