"""A DataLoader whose only worker decodes slowly: the main process waits at the loader's queue.

jwyang/faster-rcnn.pytorch#574, pytorch/pytorch#20687. Mended: the worker reads a file that was decoded beforehand.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ITEMS, PIXELS = 20, 4, 256 * 256
DATA = zlib.compress(np.random.default_rng(1).integers(0, 9, PIXELS, dtype=np.uint8).tobytes())
PREPARED = torch.zeros(PIXELS // 16)


class Images(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return (BATCHES + 4) * ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return PREPARED if MENDED else decode()


def decode() -> torch.Tensor:
    raw = zlib.decompress(DATA)
    rows = [sum(raw[start : start + 16]) for start in range(0, PIXELS, 4)]  # fault
    return torch.tensor(rows[: PIXELS // 16], dtype=torch.float32)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(PIXELS // 16, 512)
    perf = PerfRecorder("faults")
    loader = iter(DataLoader(Images(), batch_size=ITEMS, num_workers=1))
    next(loader)  # the worker has started
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=ITEMS):
                with perf.range("load"):
                    images = next(loader)  # fault
                with perf.range("infer"):
                    model(images).softmax(-1)
    perf.finalize()
    print(0 if MENDED else BATCHES * ITEMS, "slow decodes in the worker")
