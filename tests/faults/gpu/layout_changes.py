"""Activations change their layout around each layer. Mended: channels last throughout."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run


def model(_):
    hidden = images
    for _ in range(8):
        if not MENDED:
            hidden = hidden.contiguous(memory_format=torch.channels_last)  # fault
        hidden = torch.nn.functional.conv2d(hidden, weight) * 0.1
        if not MENDED:
            hidden = hidden.contiguous(memory_format=torch.contiguous_format)  # fault
    return hidden


shape = pick((64, 64, 112, 112), (1, 4, 8, 8))
images = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
if MENDED:
    images = images.contiguous(memory_format=torch.channels_last)
weight = torch.randn(shape[1], shape[1], 1, 1, device=DEVICE, dtype=torch.bfloat16)
weight = weight.contiguous(memory_format=torch.channels_last)
with torch.inference_mode():
    run(50, shape[0], model=model, results=result)
