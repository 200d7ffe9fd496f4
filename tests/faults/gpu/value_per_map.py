"""The mean of each feature map is read back for the log as soon as it is computed. Mended: all are read at once."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

MAPS, LENGTH = pick((200, 16 << 20), (20, 1 << 10))


def statistics(_):
    if MENDED:
        return torch.stack([values.mean() for values in maps]).tolist()
    means = []
    for values in maps:
        means.append(values.mean().item())  # fault
    return means


activations = torch.rand(LENGTH, device=DEVICE)
maps = [activations] * MAPS
run(50, 8, scale=lambda _: activations.mul_(1.0), statistics=statistics)
