"""A pipeline that classifies images, with one bottleneck: `brighten` looks up one pixel at a time.

`perfharness demo` launches it; with --fixed it runs without the bottleneck.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
from numpy.typing import NDArray

from perfharness import PerfRecorder

FIXED = "--fixed" in sys.argv
BATCHES, IMAGES, PIXELS, FEATURES, CLASSES = 20, 64, 4096, 32, 10
RANDOM = np.random.default_rng(1)
FILES = [zlib.compress(RANDOM.integers(0, 64, PIXELS, dtype=np.uint8).tobytes()) for _ in range(IMAGES)]
CURVE = np.sqrt(np.linspace(0, 1, 256, dtype=np.float32))
FILTERS = RANDOM.standard_normal((FEATURES, PIXELS), dtype=np.float32)
HEAD = RANDOM.standard_normal((FEATURES, CLASSES), dtype=np.float32)


def decode(file: bytes) -> NDArray[np.uint8]:
    """Decompress the pixels of an image."""
    return np.frombuffer(zlib.decompress(file), dtype=np.uint8)


def brighten(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Look up each pixel in the tone curve."""
    if FIXED:
        return np.asarray(CURVE[image])
    bright = np.empty(image.shape, dtype=np.float32)
    for index, pixel in enumerate(image):
        bright[index] = CURVE[pixel]  # the bottleneck: one pixel at a time
    return bright


def classify(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute a score for each class."""
    features = np.tanh(FILTERS * image).mean(axis=1)
    return np.asarray(features @ HEAD)


perf = PerfRecorder("demo")
with perf.range("pipeline"):
    for _, files in perf.batches([FILES] * BATCHES, items=len):
        with perf.range("decode"):
            images = [decode(file) for file in files]
        with perf.range("preprocess"):
            inputs = [brighten(image) for image in images]
        with perf.range("infer"):
            scores = [classify(image) for image in inputs]
        with perf.range("postprocess"):
            labels = np.argmax(scores, axis=1)
perf.finalize()
