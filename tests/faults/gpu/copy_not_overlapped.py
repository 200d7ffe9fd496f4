"""Batches are uploaded on the stream that computes. Mended: on another one, into two buffers in turn."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

SIDE = pick(4096, 16)


def upload(index):
    if MENDED and DEVICE == "cuda":
        copied[index % 2].wait()
        copy_into((index + 1) % 2)
        return buffers[index % 2]
    return host.to(DEVICE, non_blocking=True)  # fault


def copy_into(slot):
    copying.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copying):
        buffers[slot].copy_(host, non_blocking=True)
        copied[slot].record()


def model(images):
    hidden = images[: SIDE * SIDE].view(SIDE, SIDE).to(torch.bfloat16)
    for _ in range(50):
        hidden = hidden @ weight * 0.01
    return hidden


host = torch.ones(pick(128 << 20, 1 << 12), pin_memory=DEVICE == "cuda")
weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
if MENDED and DEVICE == "cuda":
    copying = torch.cuda.Stream()
    buffers = [torch.empty_like(host, device="cuda") for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    copy_into(0)
with torch.inference_mode():
    run(50, 64, upload=upload, model=model, results=result)
