"""A batch is collated with `torch.tensor` of a list of arrays, which reads them number by number.

pytorch/pytorch#13918, facebook/Ax#4798. Mended: stacked by numpy first.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, IMAGES, SIZE = 40, 6, 144
RNG = np.random.default_rng(24)
slow = 0


class Collator:
    """Samples to a batch."""

    def pixels(self, samples: list[dict[str, np.ndarray]]) -> torch.Tensor:
        return self.to_tensor([sample["pixels"] for sample in samples])

    def to_tensor(self, arrays: list[np.ndarray]) -> torch.Tensor:
        global slow
        if MENDED:
            return torch.from_numpy(np.stack(arrays))
        slow += 1
        return torch.tensor(arrays)  # fault

    def __call__(self, samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        return {"pixels": self.pixels(samples), "ids": torch.arange(len(samples))}


def augment(image: np.ndarray) -> dict[str, np.ndarray]:
    flipped = image[:, :, ::-1] if RNG.random() < 0.5 else image
    return {"pixels": np.ascontiguousarray((flipped - flipped.mean()) / flipped.std())}


def classify(batch: dict[str, torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    states = batch["pixels"].reshape(-1, SIZE)
    for _ in range(4):
        states = torch.tanh(states @ weights)
    return states.mean(-1)


def respond(scores: torch.Tensor) -> str:
    return ",".join(f"{score:.3f}" for score in scores.tolist())


torch.set_num_threads(1)
images = RNG.normal(size=(IMAGES, 3, SIZE, SIZE)).astype(np.float32)
weights, collate = torch.randn(SIZE, SIZE) * 0.1, Collator()
perf = PerfRecorder("faults")
with torch.no_grad(), perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=IMAGES):
            with perf.range("augment"):
                samples = [augment(image) for image in images]
            with perf.range("collate"):
                batch = collate(samples)
            with perf.range("classify"):
                scores = classify(batch, weights)
            with perf.range("respond"):
                respond(scores)
perf.finalize()
print(slow, "tensors made of lists")
