"""A denoiser moves to the host after each step and back. Mended: it stays."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

WIDTH = pick(2048, 16)


def denoise(_):
    latents = noise
    for _ in range(4):
        if not MENDED:
            denoiser.to(DEVICE)  # fault
        for _ in range(8):
            latents = denoiser(latents)
        if not MENDED:
            denoiser.to("cpu")  # fault
    return latents


denoiser = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]).to(torch.bfloat16)
denoiser.to(DEVICE)
noise = torch.randn(8192, WIDTH, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    run(16, denoise=denoise, results=result)
