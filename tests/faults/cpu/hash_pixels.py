"""A cache is asked by a digest of the finished float pixels. Mended: by a digest of the file."""

import hashlib

import numpy as np

from tests.faults.frame import MENDED, count, run

IMAGES = 4
FILES = [np.random.default_rng(number).integers(0, 255, 40_000, np.uint8).tobytes() for number in range(12)]
cache = {}


class Image:
    """One image of a request."""

    def __init__(self, content):
        self.content = content
        small = np.frombuffer(content, np.uint8).reshape(200, 200)
        self.pixels = np.repeat(np.repeat(small, 4, 0), 4, 1).astype(np.float32) / 255


def key_of(image, layer):
    digest = hashlib.sha256(layer.encode())
    if MENDED:
        digest.update(image.content)
    else:
        count()
        digest.update(image.pixels.tobytes())  # fault
    return digest.hexdigest()


def features(image, layer):
    key = key_of(image, layer)
    if key not in cache:
        cache[key] = float(image.pixels[::8, ::8].sum())
    return cache[key]


def load(index):
    return [Image(FILES[(index + number) % len(FILES)]) for number in range(IMAGES)]


def tower(images):
    return [sum(features(image, layer) for layer in ("patches", "tower")) for image in images]


def answer(found):
    states = np.resize(np.array(found, np.float32), (128, 128)) / 1e5
    for _ in range(12):
        states = np.tanh(states @ states.T)


run(30, IMAGES, load=load, tower=tower, answer=answer)
