"""`torch.tensor` of a list gathers numbers one by one; annotated from outside. Mended: an array is kept."""

import numpy as np
import torch

from tests.faults.frame import DEVICE, MENDED, pick, products, result

REQUESTS, BLOCKS = 256, pick(1024, 64)
tables = [[request * BLOCKS + block for block in range(BLOCKS)] for request in range(REQUESTS)]
kept = np.array(tables, dtype=np.int32)
multiply = products(10)


def step(requests):
    result(forward(block_table()))


def block_table():
    if MENDED:
        table = torch.from_numpy(kept)
    else:
        table = torch.tensor(tables, dtype=torch.int32)  # fault
    return table.to(DEVICE)


def forward(table):
    return multiply(table[0, 1])


def serve():
    with torch.inference_mode():
        for _ in range(50):
            step(REQUESTS)


serve()
