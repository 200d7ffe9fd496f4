"""`torch.tensor` of a list of arrays reads them number by number. Mended: stacked by numpy first."""

import numpy as np
import torch

from tests.faults.frame import MENDED, count, run

IMAGES, SIZE = 6, 144
RNG = np.random.default_rng(24)
PIXELS = RNG.normal(size=(IMAGES, 3, SIZE, SIZE)).astype(np.float32)


def to_tensor(arrays):
    if MENDED:
        return torch.from_numpy(np.stack(arrays))
    count()
    return torch.tensor(arrays)  # fault


def augment_one(image):
    flipped = image[:, :, ::-1] if RNG.random() < 0.5 else image
    return np.ascontiguousarray((flipped - flipped.mean()) / flipped.std())


def augment(_):
    return [augment_one(image) for image in PIXELS]


def collate(samples):
    return to_tensor(samples)


def classify(pixels):
    states = pixels.reshape(-1, SIZE)
    for _ in range(4):
        states = torch.tanh(states @ weights)
    return states.mean(-1)


def respond(scores):
    return ",".join(f"{score:.3f}" for score in scores.tolist())


torch.set_num_threads(1)
weights = torch.randn(SIZE, SIZE) * 0.1
with torch.no_grad():
    run(40, IMAGES, augment=augment, collate=collate, classify=classify, respond=respond)
