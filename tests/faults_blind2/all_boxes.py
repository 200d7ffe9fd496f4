"""A detector drops boxes without an object, or so it should: `.all()` stands on the wrong side of the comparison.

experiencor/keras-yolo3#177, Star-Clouds/CenterFace#83. So all boxes reach the loops that compare each with each.
Mended: compared first.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, IMAGES, CELLS, CLASSES, THRESHOLD = 20, 4, 90, 3, 0.985
compared = 0


@dataclass
class Box:
    left: float
    top: float
    right: float
    bottom: float
    scores: list[float]


def decode(grid: np.ndarray) -> list[Box]:
    boxes = []
    for cell in grid:
        objectness = cell[4:5]
        drop = (objectness <= THRESHOLD).all() if MENDED else objectness.all() <= THRESHOLD
        if not drop:
            left, top, width, height = (float(value) for value in cell[:4])
            boxes.append(Box(left, top, left + width, top + height, [float(score) for score in cell[5:]]))
    return boxes


def overlap(one: Box, other: Box) -> float:  # fault
    global compared
    compared += 1
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = [(box.right - box.left) * (box.bottom - box.top) for box in (one, other)]
    return shared / (areas[0] + areas[1] - shared)


def suppress(boxes: list[Box], label: int) -> list[Box]:
    order = sorted(range(len(boxes)), key=lambda number: -boxes[number].scores[label])
    for position, number in enumerate(order):
        if boxes[number].scores[label] == 0:
            continue
        for later in order[position + 1 :]:  # fault
            if overlap(boxes[number], boxes[later]) >= 0.98:
                boxes[later].scores[label] = 0
    return boxes


def network(images: np.ndarray) -> np.ndarray:
    states = images
    for _ in range(25):
        states = np.tanh(states @ WEIGHTS)
    return np.abs(np.resize(states, (IMAGES, CELLS, 5 + CLASSES))) + 0.01


def draw(boxes: list[Box]) -> bytes:
    canvas = bytearray(60000)
    for position in range(0, 60000, 3):
        canvas[position] = (position + len(boxes)) % 251
    return bytes(canvas)


WEIGHTS = np.random.default_rng(6).normal(0, 0.1, (256, 256)).astype(np.float32)
rng = np.random.default_rng(7)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=IMAGES):
            with perf.range("network"):
                outputs = network(rng.normal(0, 1, (128, 256)).astype(np.float32))
            for output in outputs:
                with perf.range("postprocess"):
                    with perf.range("decode"):
                        boxes = decode(output)
                    for label in range(CLASSES):
                        with perf.range("suppress"):
                            boxes = suppress(boxes, label)
                with perf.range("draw"):
                    draw(boxes)
perf.finalize()
print(compared, "pairs of boxes compared")
