"""A hook frees memory after every image with a full collection, which walks everything that the service caches.

Mikubill/sd-webui-controlnet#1462, dpeerlab/segger#46. Mended: the hook leaves the collector alone.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, IMAGES, SIZE = 40, 3, 192
RNG = np.random.default_rng(5)
collections = 0


def load_prompt_cache(count: int) -> dict[str, dict[str, list[int]]]:
    """What the service remembers of earlier prompts."""
    return {f"prompt {number}": {"tokens": [number, number + 1], "weights": [1, 2]} for number in range(count)}


def free_memory() -> None:
    global collections
    if not MENDED:
        gc.collect()  # fault
        collections += 1


class Processor:
    """Runs an image through its steps, and hooks after them."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[], None]] = [free_memory]

    def enhance(self, image: np.ndarray) -> np.ndarray:
        blurred = sum(np.roll(image, shift, axis) for axis in (0, 1) for shift in (-1, 0, 1))
        return np.clip(image + 0.5 * (image - blurred / 6), 0, 1)

    def process(self, image: np.ndarray) -> np.ndarray:
        done = self.enhance(image)
        for hook in self.hooks:
            hook()
        return done


def diffuse(noise: np.ndarray, weights: np.ndarray) -> np.ndarray:
    for _ in range(8):
        noise = np.tanh(noise @ weights)
    return noise


cache = load_prompt_cache(45_000)
processor, weights = Processor(), RNG.normal(0, 0.1, (SIZE, SIZE))
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=IMAGES):
            with perf.range("diffuse"):
                images = [diffuse(RNG.normal(size=(SIZE, SIZE)), weights) for _ in range(IMAGES)]
            with perf.range("postprocess"):
                done = [processor.process(image) for image in images]
            with perf.range("respond"):
                _ = [(image * 255).astype(np.uint8).tobytes() for image in done]
perf.finalize()
print(collections, "collections")
