"""Frames are sent with `non_blocking=True` from memory that is not pinned. Mended: it is pinned."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

SIDE = pick(4096, 16)


def upload(_):
    return frames.to(DEVICE, non_blocking=True)  # fault


def model(on_device):
    hidden = on_device[: SIDE * SIDE].view(-1, SIDE).to(torch.bfloat16)
    for _ in range(30):
        hidden = hidden[:, :SIDE] @ weight * 0.01
    return hidden


frames = torch.ones(pick(20 << 20, 1 << 10))
if MENDED and DEVICE == "cuda":
    frames = frames.pin_memory()
weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    run(50, 16, upload=upload, model=model, results=result)
