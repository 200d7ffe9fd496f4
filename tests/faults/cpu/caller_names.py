"""A decorator notes who called: `inspect.stack()` reads the source of every frame. Mended: the frame above alone."""

import functools
import inspect
import sys
from collections import Counter

import numpy as np

from tests.faults.frame import MENDED, count, run

OBJECTS = 200
RNG = np.random.default_rng(25)
WEIGHTS = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
callers = Counter()


def caller_name():
    if MENDED:
        return sys._getframe(2).f_code.co_name
    count()
    return inspect.stack()[2].function  # fault


def logged(call):
    @functools.wraps(call)
    def wrapper(*arguments):
        callers[caller_name()] += 1
        return call(*arguments)

    return wrapper


@logged
def refine(box):
    return np.clip(box, 0, 1)


def preprocess(_):
    image = RNG.normal(size=(256, 256)).astype(np.float32)
    return sum(np.roll(image, shift, axis) for axis in (0, 1) for shift in (-1, 0, 1)) / 6


def backbone(image):
    for _ in range(25):
        image = np.tanh(image @ WEIGHTS)
    return image


def boxes(heat):
    best = np.argpartition(heat, -OBJECTS, axis=None)[-OBJECTS:]
    return [refine(np.array([place % 256, place // 256, 8, 8]) / 256) for place in best]


run(60, OBJECTS, preprocess=preprocess, backbone=backbone, boxes=boxes)
