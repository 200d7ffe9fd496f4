"""The only worker of a DataLoader decodes slowly, and the main process waits. Mended: decoded before."""

import zlib

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.frame import MENDED, count, run

BATCHES, ITEMS, PIXELS = 20, 4, 256 * 256
DATA = zlib.compress(np.random.default_rng(1).integers(0, 9, PIXELS, dtype=np.uint8).tobytes())
PREPARED = torch.zeros(PIXELS // 16)


class Images(Dataset):
    def __len__(self):
        return (BATCHES + 4) * ITEMS

    def __getitem__(self, index):
        return PREPARED if MENDED else decode()


def decode():
    raw = zlib.decompress(DATA)
    rows = [sum(raw[start : start + 16]) for start in range(0, PIXELS, 4)]  # fault
    return torch.tensor(rows[: PIXELS // 16], dtype=torch.float32)


def load(_):
    count(0 if MENDED else ITEMS)
    return next(loader)  # fault


torch.set_num_threads(1)
model = torch.nn.Linear(PIXELS // 16, 512)
loader = iter(DataLoader(Images(), batch_size=ITEMS, num_workers=1, multiprocessing_context="fork"))
next(loader)  # the worker has started
with torch.inference_mode():
    run(BATCHES, ITEMS, load=load, infer=lambda images: model(images).softmax(-1))
