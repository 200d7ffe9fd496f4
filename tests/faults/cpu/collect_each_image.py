"""A hook runs a full collection after every image, over all that is cached. Mended: no collection."""

import gc

import numpy as np

from tests.faults.frame import MENDED, count, run

IMAGES, SIZE = 3, 192
RNG = np.random.default_rng(5)
WEIGHTS = RNG.normal(0, 0.1, (SIZE, SIZE))
CACHE = {f"prompt {number}": {"tokens": [number, number + 1], "weights": [1, 2]} for number in range(45_000)}


def free_memory():
    if not MENDED:
        gc.collect()  # fault
        count()


hooks = [free_memory]


def process(image):
    blurred = sum(np.roll(image, shift, axis) for axis in (0, 1) for shift in (-1, 0, 1))
    done = np.clip(image + 0.5 * (image - blurred / 6), 0, 1)
    for hook in hooks:
        hook()
    return done


def diffuse(_):
    return [diffuse_one(RNG.normal(size=(SIZE, SIZE))) for _ in range(IMAGES)]


def diffuse_one(noise):
    for _ in range(8):
        noise = np.tanh(noise @ WEIGHTS)
    return noise


def postprocess(images):
    return [process(image) for image in images]


def respond(images):
    return [(image * 255).astype(np.uint8).tobytes() for image in images]


run(40, IMAGES, diffuse=diffuse, postprocess=postprocess, respond=respond)
