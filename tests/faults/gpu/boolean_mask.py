"""Logits are divided through a boolean mask, for whose size the host waits. Mended: `torch.where`."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

PENALTY = 1.0001


def penalize(logits):
    if MENDED:
        return torch.where(logits > 0, logits / PENALTY, logits)
    logits[logits > 0] /= PENALTY  # fault
    return logits


def penalties(_):
    global logits
    for _ in range(40):
        logits = penalize(logits)
    return logits


logits = torch.randn(pick((64, 32_000), (2, 100)), device=DEVICE)
run(50, len(logits), penalties=penalties, tokens=lambda found: found.argmax(dim=1).tolist())
