"""A normalisation written as eight elementwise operations reads and writes the activations eight times.

vllm-project/vllm#42251: `GemmaRMSNorm` fell back to eight kernels; baidu-baige/LoongForge#136 uses `F.rms_norm`.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
ROWS = {"cuda": 32_768, "cpu": 8}
WIDTH = {"cuda": 4096, "cpu": 16}
NORMS = 8


def by_hand(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = hidden.float()  # fault
    mean = wide.pow(2).mean(dim=-1, keepdim=True)  # fault
    return (wide * torch.rsqrt(mean + 1e-6)).to(hidden.dtype) * weight  # fault


def by_library(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, 1e-6)


def main() -> None:
    args = parse_options(__doc__)
    norm = by_library if args.mended else by_hand
    weight = torch.ones(WIDTH[args.device], device=args.device, dtype=torch.bfloat16)
    inputs = torch.randn(ROWS[args.device], len(weight), device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("rms_norm_by_hand")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(inputs)):
                with perf.range("norms"):
                    hidden = inputs
                    for _ in range(NORMS):
                        hidden = norm(hidden, weight)
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
