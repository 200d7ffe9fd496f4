"""A runner of plug-ins logs every refusal with its traceback, and most boxes are refused by one of the plug-ins.

IBM/mcp-context-forge#2064. Mended: the refusal is logged as one line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, BOXES = 40, 150
logger = logging.getLogger("plugins")
tracebacks = 0


class CountingHandler(logging.FileHandler):
    """A handler that knows how many tracebacks it has written."""

    def emit(self, record: logging.LogRecord) -> None:
        global tracebacks
        tracebacks += record.exc_info is not None
        super().emit(record)


class RefusedError(Exception):
    """A plug-in wants nothing to do with a box."""


def check_area(box: np.ndarray) -> None:
    if (box[2] - box[0]) * (box[3] - box[1]) < 0.5:
        raise RefusedError(f"box {box[0]:.2f} is too small")


def check_ratio(box: np.ndarray) -> None:
    if box[2] - box[0] > 4 * (box[3] - box[1]):
        raise RefusedError(f"box {box[0]:.2f} is too flat")


PLUGINS: list[Callable[[np.ndarray], None]] = [check_area, check_ratio]


class Manager:
    """Asks every plug-in about every box."""

    def is_accepted(self, box: np.ndarray) -> bool:
        return all(self.has_no_objection(plugin, box) for plugin in PLUGINS)

    def has_no_objection(self, plugin: Callable[[np.ndarray], None], box: np.ndarray) -> bool:
        try:
            plugin(box)
        except RefusedError as refusal:
            self.report(plugin, refusal)
            return False
        return True

    def report(self, plugin: Callable[[np.ndarray], None], refusal: RefusedError) -> None:
        if MENDED:
            logger.warning("%s: %s", plugin.__name__, refusal)
        else:
            logger.error("%s: %s", plugin.__name__, refusal, exc_info=True)  # fault


def detect(index: int) -> np.ndarray:
    scores = np.random.default_rng(index).random((BOXES, 64))
    for _ in range(12):
        scores = np.tanh(scores @ np.full((64, 64), 0.02))
    return np.abs(np.random.default_rng(index + 1).random((BOXES, 4)))


def draw(boxes: list[np.ndarray]) -> np.ndarray:
    canvas = np.zeros((400, 400), np.float32)
    for number, box in enumerate(boxes):
        canvas[int(box[0] * 200) : int(box[2] * 200) + 90, number % 300 :] += 1
    return np.sqrt(canvas)


logger.addHandler(CountingHandler(os.devnull))
logger.propagate = False
manager = Manager()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=BOXES):
            with perf.range("detect"):
                boxes = detect(index)
            with perf.range("filter"):
                kept = [box for box in boxes if manager.is_accepted(box)]
            with perf.range("draw"):
                draw(kept)
perf.finalize()
print(tracebacks, "tracebacks written")
