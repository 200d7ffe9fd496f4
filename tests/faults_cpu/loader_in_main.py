"""A DataLoader without workers: every image is decoded in the main process, between two batches of the model.

huggingface/transformers#34059. Mended: the decoded images are kept after the first epoch.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ITEMS, PIXELS = 20, 16, 128 * 128
DATA = [zlib.compress(np.random.default_rng(i).integers(0, 9, PIXELS, dtype=np.uint8).tobytes()) for i in range(32)]
decodes = 0


class Images(Dataset):  # type: ignore[misc]
    def __init__(self) -> None:
        self.kept = [self.decode(i) for i in range(len(DATA))] if MENDED else []

    def __len__(self) -> int:
        return BATCHES * ITEMS

    def decode(self, index: int) -> torch.Tensor:
        raw = zlib.decompress(DATA[index % len(DATA)])
        rows = [sum(raw[start : start + 16]) for start in range(0, PIXELS, 4)]  # fault
        return torch.tensor(rows, dtype=torch.float32)

    def __getitem__(self, index: int) -> torch.Tensor:
        global decodes
        if MENDED:
            return self.kept[index % len(DATA)]
        decodes += 1
        return self.decode(index)


torch.set_num_threads(1)
model = torch.nn.Linear(PIXELS // 4, 256)
perf = PerfRecorder("faults")
loader = iter(DataLoader(Images(), batch_size=ITEMS, num_workers=0))
with perf.range("pipeline"), torch.inference_mode():
    for index in range(BATCHES):
        with perf.batch(index, total_items=ITEMS):
            with perf.range("load"):
                images = next(loader)
            with perf.range("infer"):
                for _ in range(6):
                    model(images).softmax(-1)
perf.finalize()
print(decodes, "images decoded in the main process")
