"""Strides become tensors on the GPU one number at a time, again for each image. Mended: they stay numbers."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

IMAGES, SIZE = 64, 512
SIDE = pick(128, 8)


def strides():
    if MENDED:
        return [SIZE // (SIZE >> (level + 2)) for level in range(5)]
    found = []
    for level in range(5):
        found.append(torch.tensor(SIZE // (SIZE >> (level + 2)), device=DEVICE))  # fault
    return found


def anchors(_):
    return [grid[image] * stride for image in range(IMAGES) for stride in strides()]


grid = torch.arange(SIDE * SIDE, device=DEVICE, dtype=torch.float32).repeat(IMAGES, 64)
run(50, IMAGES, anchors=anchors, results=lambda found: torch.stack([one.amax() for one in found]).cpu())
