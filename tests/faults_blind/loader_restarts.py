"""A service runs a small DataLoader over each upload, and its workers start and end with every one.

pytorch/pytorch#15849, metatensor/metatrain#1271. Mended: the loader stays, and so do its workers.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, IMAGES = 40, 4
starts = 0


class Upload(Dataset):  # type: ignore[misc]
    """The images that somebody has sent."""

    def __init__(self) -> None:
        self.pixels = np.random.default_rng(22).integers(0, 255, (IMAGES, 3, 64, 64), dtype=np.uint8)

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.pixels[index]).float() / 255


def loader(upload: Upload, *, stays: bool) -> DataLoader:
    return DataLoader(upload, batch_size=2, num_workers=2, persistent_workers=stays, multiprocessing_context="fork")


def load(upload: Upload) -> list[torch.Tensor]:
    global starts
    if MENDED:
        return list(kept)
    starts += 1
    return list(loader(upload, stays=False))  # fault


def embed(images: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    states = torch.cat(images).reshape(-1, 256)
    for _ in range(8):
        states = torch.tanh(states @ weights)
    return states


def similar(states: torch.Tensor) -> list[int]:
    return [int(number) for number in (states @ states.T).argmax(-1)]


torch.set_num_threads(1)
uploaded = Upload()
kept = loader(uploaded, stays=True)
weights = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)) * 0.1
if MENDED:
    list(kept)
perf = PerfRecorder("faults")
with torch.no_grad(), perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=IMAGES):
            with perf.range("load"):
                images = load(uploaded)
            with perf.range("embed"):
                states = embed(images, weights)
            with perf.range("search"):
                found = similar(states)
perf.finalize()
print(starts, "starts of the workers")
