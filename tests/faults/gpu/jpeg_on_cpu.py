"""Photographs are decoded in full on the CPU for 224 pixels. Mended: they are stored in that size."""

import io

import numpy as np
import torch
from PIL import Image

from tests.faults.frame import DEVICE, MENDED, pick, products, result, run

PHOTOGRAPHS, INPUT = 2, 224


def photograph(side):
    rows = np.arange(side, dtype=np.uint32)
    noise = (rows[:, None] * 31 + rows[None, :] * 17) % 251
    file = io.BytesIO()
    Image.fromarray(np.stack([noise, noise.T, noise], axis=2).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def decode_one():
    image = Image.open(io.BytesIO(encoded))
    image.load()  # fault
    small = image.convert("RGB").resize((INPUT, INPUT), Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(small))


def decode(_):
    return [decode_one() for _ in range(PHOTOGRAPHS)]


def model(photographs):
    return network(torch.stack(photographs).to(DEVICE).float().mean())


encoded = photograph(INPUT if MENDED else pick(1600, 128))
network = products(150)
with torch.inference_mode():
    run(24, PHOTOGRAPHS, decode=decode, model=model, results=result)
