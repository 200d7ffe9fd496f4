"""The workers of a DataLoader start and end for every upload. Mended: they stay."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.frame import MENDED, count, run

IMAGES = 4
PIXELS = np.random.default_rng(22).integers(0, 255, (IMAGES, 3, 64, 64), dtype=np.uint8)


class Upload(Dataset):
    """The images that somebody has sent."""

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        return torch.from_numpy(PIXELS[index]).float() / 255


def loader(stays):
    return DataLoader(Upload(), batch_size=2, num_workers=2, persistent_workers=stays, multiprocessing_context="fork")


def load(_):
    if MENDED:
        return list(kept)
    count()
    return list(loader(stays=False))  # fault


def embed(images):
    states = torch.cat(images).reshape(-1, 256)
    for _ in range(8):
        states = torch.tanh(states @ weights)
    return states


def search(states):
    return [int(number) for number in (states @ states.T).argmax(-1)]


torch.set_num_threads(1)
weights = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)) * 0.1
kept = loader(stays=True)
if MENDED:
    list(kept)
with torch.no_grad():
    run(40, IMAGES, load=load, embed=embed, search=search)
