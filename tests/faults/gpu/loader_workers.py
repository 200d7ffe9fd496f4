"""Two workers of a DataLoader decode slowly, and the loop waits. Mended: decoded before."""

import hashlib

import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.frame import DEVICE, MENDED, products, result, run

BATCHES, IMAGES = 24, 4
ENCODED = bytes(15_000_000)


class Images(Dataset):
    """Images whose decoding is so many bytes of SHA-256, which takes a core as long wherever it runs."""

    def __len__(self):
        return BATCHES * IMAGES

    def __getitem__(self, index):
        if not MENDED:
            hashlib.sha256(ENCODED).digest()  # fault
        return torch.full((3, 224, 224), index / len(self))


def load(_):
    return next(loader)  # fault


def model(images):
    return network(images.to(DEVICE).mean())


loader = iter(DataLoader(Images(), batch_size=IMAGES, num_workers=2, multiprocessing_context="fork"))
network = products(25)
with torch.inference_mode():
    run(BATCHES, IMAGES, load=load, model=model, results=result)
