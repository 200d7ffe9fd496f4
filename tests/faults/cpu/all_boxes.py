"""`.all()` on the wrong side of a comparison keeps all boxes, and each is compared with each. Mended: right side."""

from dataclasses import dataclass

import numpy as np

from tests.faults.frame import MENDED, batches, count, stage

IMAGES, CELLS, CLASSES, THRESHOLD = 4, 90, 3, 0.985
WEIGHTS = np.random.default_rng(6).normal(0, 0.1, (256, 256)).astype(np.float32)
RNG = np.random.default_rng(7)


@dataclass
class Box:
    left: float
    top: float
    right: float
    bottom: float
    scores: list[float]


def decode(grid):
    boxes = []
    for cell in grid:
        objectness = cell[4:5]
        drop = (objectness <= THRESHOLD).all() if MENDED else objectness.all() <= THRESHOLD
        if not drop:
            left, top, width, height = (float(value) for value in cell[:4])
            boxes.append(Box(left, top, left + width, top + height, [float(score) for score in cell[5:]]))
    return boxes


def overlap(one, other):  # fault
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box.right - box.left) * (box.bottom - box.top) for box in (one, other)]
    return width * height / (areas[0] + areas[1] - width * height)


def suppress(boxes, label):
    order = sorted(range(len(boxes)), key=lambda number: -boxes[number].scores[label])
    for position, number in enumerate(order):
        if boxes[number].scores[label] == 0:
            continue
        count(len(order) - position - 1)
        for later in order[position + 1 :]:  # fault
            if overlap(boxes[number], boxes[later]) >= 0.98:
                boxes[later].scores[label] = 0
    return boxes


def network():
    states = RNG.normal(0, 1, (128, 256)).astype(np.float32)
    for _ in range(25):
        states = np.tanh(states @ WEIGHTS)
    return np.abs(np.resize(states, (IMAGES, CELLS, 5 + CLASSES))) + 0.01


def draw(boxes):
    canvas = bytearray(60000)
    for position in range(0, 60000, 3):
        canvas[position] = (position + len(boxes)) % 251


for _ in batches(20, IMAGES):
    with stage("network"):
        outputs = network()
    for output in outputs:
        with stage("postprocess"):
            with stage("decode"):
                boxes = decode(output)
            for label in range(CLASSES):
                with stage("suppress"):
                    suppress(boxes, label)
        with stage("draw"):
            draw(boxes)
