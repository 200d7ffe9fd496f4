"""Small independent models share the default stream, and none fills the GPU. Mended: a stream for each."""

import contextlib

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

MODELS = 4


def models(_):
    outputs = []
    for number, row in enumerate(logits):
        with torch.cuda.stream(streams[number]) if streams else contextlib.nullcontext():
            for _ in range(12):
                probabilities = torch.softmax(row, dim=1)  # fault
            outputs.append(probabilities.amax())
    for other in streams:
        other.synchronize()
    return outputs


logits = [torch.randn(1, pick(1 << 20, 1 << 6), device=DEVICE) for _ in range(MODELS)]
streams = [torch.cuda.Stream() for _ in logits] if MENDED and DEVICE == "cuda" else []
if DEVICE == "cuda":
    torch.cuda.synchronize()
with torch.inference_mode():
    run(50, MODELS, models=models, results=lambda outputs: torch.stack(outputs).cpu())
