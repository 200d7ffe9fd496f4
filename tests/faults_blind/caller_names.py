"""A decorator writes down who called: `inspect.stack()` reads the source of every frame for it.

Physical-Intelligence/openpi#534, mlcommons/logging#18. Mended: the frame above, without its source.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, OBJECTS = 60, 200
T = TypeVar("T")
RNG = np.random.default_rng(25)
callers: Counter[str] = Counter()
walks = 0


def caller_name() -> str:
    global walks
    if MENDED:
        return sys._getframe(2).f_code.co_name
    walks += 1
    return inspect.stack()[2].function  # fault


def logged(call: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(call)
    def wrapper(*arguments: object) -> T:
        callers[caller_name()] += 1
        return call(*arguments)

    return wrapper


@logged
def refine(box: np.ndarray) -> np.ndarray:
    return np.clip(box, 0, 1)


def boxes_of(heat: np.ndarray) -> list[np.ndarray]:
    best = np.argpartition(heat, -OBJECTS, axis=None)[-OBJECTS:]
    return [refine(np.array([place % 256, place // 256, 8, 8]) / 256) for place in best]


def backbone(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    for _ in range(25):
        image = np.tanh(image @ weights)
    return image


def smooth(image: np.ndarray) -> np.ndarray:
    return np.asarray(sum(np.roll(image, shift, axis) for axis in (0, 1) for shift in (-1, 0, 1))) / 6


weights = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=OBJECTS):
            with perf.range("preprocess"):
                image = smooth(RNG.normal(size=(256, 256)).astype(np.float32))
            with perf.range("backbone"):
                heat = backbone(image, weights)
            with perf.range("boxes"):
                boxes = boxes_of(heat)
perf.finalize()
print(walks, "walks up the stack")
