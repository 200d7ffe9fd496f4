"""A runner of plug-ins logs every refusal with its traceback. Mended: as one line."""

import logging
import os

import numpy as np

from tests.faults.frame import MENDED, count, run

BOXES = 150
logger = logging.getLogger("plugins")


class RefusedError(Exception):
    """A plug-in wants nothing to do with a box."""


def check_area(box):
    if (box[2] - box[0]) * (box[3] - box[1]) < 0.5:
        raise RefusedError(f"box {box[0]:.2f} is too small")


def check_ratio(box):
    if box[2] - box[0] > 4 * (box[3] - box[1]):
        raise RefusedError(f"box {box[0]:.2f} is too flat")


def is_accepted(box):
    return all(has_no_objection(plugin, box) for plugin in (check_area, check_ratio))


def has_no_objection(plugin, box):
    try:
        plugin(box)
    except RefusedError as refusal:
        report(plugin, refusal)
        return False
    return True


def report(plugin, refusal):
    if MENDED:
        logger.warning("%s: %s", plugin.__name__, refusal)
    else:
        count()
        logger.error("%s: %s", plugin.__name__, refusal, exc_info=True)  # fault


def detect(index):
    scores = np.random.default_rng(index).random((BOXES, 64))
    for _ in range(12):
        scores = np.tanh(scores @ np.full((64, 64), 0.02))
    return np.abs(np.random.default_rng(index + 1).random((BOXES, 4)))


def accept(boxes):
    return [box for box in boxes if is_accepted(box)]


def draw(boxes):
    canvas = np.zeros((400, 400), np.float32)
    for number, box in enumerate(boxes):
        canvas[int(box[0] * 200) : int(box[2] * 200) + 90, number % 300 :] += 1
    return np.sqrt(canvas)


logger.addHandler(logging.FileHandler(os.devnull))
logger.propagate = False
run(40, BOXES, detect=detect, filter=accept, draw=draw)
