"""`np.vectorize` calls a Python function for every number. Mended: numpy's own `exp`."""

import math

import numpy as np

from tests.faults.frame import MENDED, count, run

GRID, ANCHORS = 76, 3
RNG = np.random.default_rng(2)
WEIGHTS = RNG.normal(size=(256, 256)).astype(np.float32)


def sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value))  # fault


sigmoid_v = np.vectorize(sigmoid)


def activate(head):
    if MENDED:
        return 1.0 / (1.0 + np.exp(-head))
    count(head.size)
    return sigmoid_v(head)  # fault


def infer(_):
    features = RNG.normal(size=(416, 256)).astype(np.float32)
    for _ in range(8):
        features = np.maximum(features @ WEIGHTS, 0) * 0.05
    return RNG.normal(size=(GRID, GRID, ANCHORS, 17))


def decode(head):
    places, objectness, classes = head[..., :4], head[..., 4], head[..., 5:]
    scores = activate(objectness)[..., None] * activate(classes)
    grid = np.stack(np.meshgrid(np.arange(GRID), np.arange(GRID)), -1)[:, :, None]
    return np.concatenate([(places[..., :2] + grid) / GRID, np.exp(places[..., 2:])], -1), scores


def suppress(found):
    best = found[1].max(-1).ravel()
    return [int(number) for number in np.argsort(best)[::-1][:100]]


run(50, infer=infer, decode=decode, nms=suppress)
