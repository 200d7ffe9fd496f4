"""A normalisation is eight elementwise operations. Mended: that of the library."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

ROWS, WIDTH = pick((32_768, 4096), (8, 16))


def norm(hidden):
    if MENDED:
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, 1e-6)
    wide = hidden.float()  # fault
    mean = wide.pow(2).mean(dim=-1, keepdim=True)  # fault
    return (wide * torch.rsqrt(mean + 1e-6)).to(hidden.dtype) * weight  # fault


def norms(_):
    hidden = inputs
    for _ in range(8):
        hidden = norm(hidden)
    return hidden


weight = torch.ones(WIDTH, device=DEVICE, dtype=torch.bfloat16)
inputs = torch.randn(ROWS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    run(50, ROWS, norms=norms, results=result)
