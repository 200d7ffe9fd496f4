"""The denoiser is moved to the host after each step and back before the next, to make room that nobody needs.

huggingface/diffusers#11872: with CPU offloading the transformer travelled in each step of the loop.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 16
STEPS = 4
WIDTH = {"cuda": 2048, "cpu": 16}
LAYERS = 4


def main() -> None:
    args = parse_options(__doc__)
    width = WIDTH[args.device]
    denoiser = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(LAYERS)]).to(torch.bfloat16)
    denoiser.to(args.device)
    noise = torch.randn(8192, width, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("offload_each_step")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                latents = noise
                with perf.range("denoise"):
                    for _ in range(STEPS):
                        if not args.mended:
                            denoiser.to(args.device)  # fault
                        for _ in range(8):
                            latents = denoiser(latents)
                        if not args.mended:
                            denoiser.to("cpu")  # fault
                with perf.range("results"):
                    latents.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
