"""Large photos are decoded in full, only to be shrunk to the input of a classifier.

thumbor/thumbor#989, lstein/PhotoMapAI#366. Mended: the decoder is asked for about the size that is needed.
"""

from __future__ import annotations

import io
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np
from PIL import Image

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, PHOTOS, INPUT = 30, 2, (224, 224)
RNG = np.random.default_rng(7)
full = 0


def make_photo(width: int, height: int) -> bytes:
    small = Image.fromarray(RNG.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    small.resize((width, height)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def open_photo(data: bytes) -> Image.Image:
    """As the client sent it."""
    return Image.open(io.BytesIO(data))


def to_rgb(photo: Image.Image) -> Image.Image:
    global full
    if MENDED:
        photo.draft("RGB", (INPUT[0] * 2, INPUT[1] * 2))
        return photo.convert("RGB")
    full += 1
    return photo.convert("RGB")  # fault


def shrink(photo: Image.Image) -> Image.Image:
    return photo.resize(INPUT, Image.Resampling.BILINEAR)


def preprocess(data: bytes) -> np.ndarray:
    pixels = np.asarray(shrink(to_rgb(open_photo(data))), dtype=np.float32)
    return ((pixels / 255 - 0.45) / 0.22).transpose(2, 0, 1)


def classify(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    features = images.reshape(-1, 224)
    for _ in range(6):
        features = np.tanh(features @ weights)
    return features.max(-1)


photos = [make_photo(2400, 1600) for _ in range(PHOTOS)]
weights = RNG.normal(0, 0.1, (224, 224)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=PHOTOS):
            with perf.range("preprocess"):
                images = np.stack([preprocess(photo) for photo in photos])
            with perf.range("classify"):
                scores = classify(images, weights)
            with perf.range("label"):
                labels = [f"{score:.3f}" for score in scores]
perf.finalize()
print(full, "photos decoded in full")
