"""Ever new lengths ask for buffers that fit no cached block. Mended: the longest comes first."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

BATCHES, LENGTH, STEP = 60, 1024, 256


def encode_one(tokens):
    squared = tokens * tokens  # fault
    activated = torch.tanh(squared)  # fault
    return (activated * tokens).amax()  # fault


def encode(index):
    return encode_one(everything[: LENGTH + STEP * index])


everything = torch.ones(LENGTH + STEP * BATCHES, pick(2048, 8), device=DEVICE)
if MENDED:
    encode_one(everything)
with torch.inference_mode():
    run(BATCHES, encode=encode, results=lambda best: best.item())
