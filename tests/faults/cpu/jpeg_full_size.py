"""Large photos are decoded in full, only to be shrunk. Mended: the decoder is asked for about the size needed."""

import io

import numpy as np
from PIL import Image

from tests.faults.frame import MENDED, count, network, run

PHOTOS, INPUT = 2, (224, 224)


def make_photo(width, height):
    pixels = np.random.default_rng(7).integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def to_rgb(photo):
    if MENDED:
        photo.draft("RGB", (INPUT[0] * 2, INPUT[1] * 2))
        return photo.convert("RGB")
    count()
    return photo.convert("RGB")  # fault


def preprocess_one(data):
    small = to_rgb(Image.open(io.BytesIO(data))).resize(INPUT, Image.Resampling.BILINEAR)
    return ((np.asarray(small, dtype=np.float32) / 255 - 0.45) / 0.22).transpose(2, 0, 1)


def preprocess(_):
    return np.stack([preprocess_one(photo) for photo in photos])


def label(images):
    return [f"{score:.3f}" for score in images.reshape(-1, 224).max(-1)]


photos = [make_photo(2400, 1600)] * PHOTOS
run(30, PHOTOS, preprocess=preprocess, classify=network(PHOTOS * 3 * 224, 224, 6), label=label)
