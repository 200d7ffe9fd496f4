"""A shared array is filled and read through its wrapper, which turns each number into a Python object and back.

ray-project/ray#42886. Annotated from outside: shared_array_elements.toml. Mended: through a view of its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

MENDED = "--mended" in sys.argv
BATCHES, NUMBERS = 30, 60_000
by_element = 0


class Slot:
    """One array that all processes see."""

    def __init__(self) -> None:
        self.array: Any = multiprocessing.Array("d", NUMBERS)
        memory: Any = self.array.get_obj()
        self.view = np.frombuffer(memory, np.float64)

    def put(self, values: np.ndarray) -> None:
        global by_element
        if MENDED:
            with self.array.get_lock():
                self.view[:] = values
        else:
            by_element += NUMBERS
            self.array[:] = values  # fault

    def get(self) -> np.ndarray:
        if MENDED:
            return self.view.copy()
        return np.array(self.array[:])  # fault


def featurize(index: int) -> np.ndarray:
    return np.sin(np.arange(NUMBERS, dtype=np.float64) * index)


def exchange(slot: Slot, values: np.ndarray) -> np.ndarray:
    slot.put(values)
    return slot.get()


def classify(values: np.ndarray) -> float:
    table = np.resize(values, (96, 96)) + np.eye(96)
    return float(np.linalg.svd(table, compute_uv=False)[0])


def handle(slot: Slot, index: int) -> float:
    return classify(exchange(slot, featurize(index)))


def serve() -> None:
    slot = Slot()
    for index in range(BATCHES):
        handle(slot, index)


if __name__ == "__main__":
    serve()
    print(by_element, "numbers written as objects")
