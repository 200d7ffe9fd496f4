"""Activations are cloned before each step and never written to. Mended: one tensor."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

SIDE = pick(4096, 16)


def steps(_):
    for _ in range(8):
        kept = activations
        if not MENDED:
            kept = activations.clone()  # fault
        hidden = (weight * kept[0]) @ weight
    return hidden


activations = torch.zeros(pick(256 << 20, 1 << 10), device=DEVICE)
weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    run(50, steps=steps, results=result)
