"""A softmax per request is one block, and other multiprocessors are idle. Mended: many requests at once."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

REQUESTS = 64 * 8 if MENDED else 64


def probabilities(_):
    if MENDED:
        return torch.softmax(logits, dim=1)
    return torch.cat([torch.softmax(row, dim=1) for row in logits.split(1)])  # fault


logits = torch.randn(REQUESTS, pick(1 << 18, 1 << 6), device=DEVICE)
with torch.inference_mode():
    run(50, REQUESTS, probabilities=probabilities, results=lambda found: found[:, 0].cpu())
