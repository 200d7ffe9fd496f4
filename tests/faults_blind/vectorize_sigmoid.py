"""The head of a detector is decoded with `np.vectorize`, which calls a Python function for every number.

NVIDIA/TensorRT#2469, mnielsen/neural-networks-and-deep-learning#16. Mended: numpy's own `exp`.
"""

from __future__ import annotations

import math
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, GRID, ANCHORS = 50, 76, 3
RNG = np.random.default_rng(2)
calls = 0


def sigmoid(value: float) -> float:
    global calls
    calls += 1  # fault
    return 1.0 / (1.0 + math.exp(-value))  # fault


def sigmoid_fast(values: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-values))


sigmoid_v = np.vectorize(sigmoid)


def activate(head: np.ndarray) -> np.ndarray:
    if MENDED:
        return sigmoid_fast(head)
    return np.asarray(sigmoid_v(head))  # fault


def decode(head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and their scores, of one scale of the network."""
    boxes, objectness, classes = head[..., :4], head[..., 4], head[..., 5:]
    scores = activate(objectness)[..., None] * activate(classes)
    grid = np.stack(np.meshgrid(np.arange(GRID), np.arange(GRID)), -1)[:, :, None]
    return np.concatenate([(boxes[..., :2] + grid) / GRID, np.exp(boxes[..., 2:])], -1), scores


def suppress(boxes: np.ndarray, scores: np.ndarray) -> list[int]:
    best = scores.max(-1).ravel()
    return [int(number) for number in np.argsort(best)[::-1][:100]]


def infer(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    features = images
    for _ in range(8):
        features = np.maximum(features @ weights, 0) * 0.05
    return RNG.normal(size=(GRID, GRID, ANCHORS, 17))


weights = RNG.normal(size=(256, 256)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("infer"):
                head = infer(RNG.normal(size=(416, 256)).astype(np.float32), weights)
            with perf.range("decode"):
                boxes, scores = decode(head)
            with perf.range("nms"):
                kept = suppress(boxes, scores)
perf.finalize()
print(calls, "calls of a Python function")
