"""A DataLoader without workers decodes every image in the main process. Mended: decoded once."""

import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.frame import MENDED, count, run

BATCHES, ITEMS, PIXELS = 20, 16, 128 * 128
DATA = [zlib.compress(np.random.default_rng(i).integers(0, 9, PIXELS, dtype=np.uint8).tobytes()) for i in range(32)]


class Images(Dataset):
    def __init__(self):
        self.kept = [self.decode(i) for i in range(len(DATA))] if MENDED else []

    def __len__(self):
        return BATCHES * ITEMS

    def decode(self, index):
        raw = zlib.decompress(DATA[index % len(DATA)])
        rows = [sum(raw[start : start + 16]) for start in range(0, PIXELS, 4)]  # fault
        return torch.tensor(rows, dtype=torch.float32)

    def __getitem__(self, index):
        if MENDED:
            return self.kept[index % len(DATA)]
        count()
        return self.decode(index)


def infer(images):
    for _ in range(6):
        model(images).softmax(-1)


torch.set_num_threads(1)
model = torch.nn.Linear(PIXELS // 4, 256)
loader = iter(DataLoader(Images(), batch_size=ITEMS, num_workers=0))
with torch.inference_mode():
    run(BATCHES, ITEMS, load=lambda _: next(loader), infer=infer)
