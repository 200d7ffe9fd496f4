"""Each layer is timed with `torch.cuda.synchronize()`, which was left in after the measurement. Mended: it is gone."""

import time

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

SIDE = pick(2560, 16)


def model(_):
    if MENDED:
        return untimed(inputs)
    hidden = inputs
    for weight in layers:
        started = time.perf_counter()
        hidden = torch.relu(hidden @ weight)
        if DEVICE == "cuda":
            torch.cuda.synchronize()  # fault
        time.perf_counter() - started
    return hidden


def untimed(hidden):
    for weight in layers:
        hidden = torch.relu(hidden @ weight)
    return hidden


layers = [torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16) / SIDE**0.5] * 200
inputs = torch.randn(SIDE // 2, SIDE, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    run(50, SIDE // 2, model=model, results=result)
