"""Matrix products in float32 leave the tensor cores idle: TF32 is off unless it is asked for. Mended: bfloat16."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

SIDE = pick(4096, 16)


def model(_):
    hidden = inputs
    for _ in range(8):
        hidden = hidden @ weight  # fault
    return hidden


dtype = torch.bfloat16 if MENDED else torch.float32
weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=dtype) / SIDE**0.5
inputs = torch.randn(SIDE, SIDE, device=DEVICE, dtype=dtype)
with torch.inference_mode():
    run(50, SIDE, model=model, results=result)
