"""A repetition penalty divides the positive logits through a boolean mask, whose size the host has to wait for.

vllm-project/vllm#16436: `logits[logits > 0] /= …` synchronised in each step of decoding; pytorch/pytorch#12461.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
STEPS = 40
LOGITS = {"cuda": (64, 32_000), "cpu": (2, 100)}
PENALTY = 1.0001


def by_mask(logits: torch.Tensor) -> torch.Tensor:
    logits[logits > 0] /= PENALTY  # fault
    return logits


def by_where(logits: torch.Tensor) -> torch.Tensor:
    return torch.where(logits > 0, logits / PENALTY, logits)


def main() -> None:
    args = parse_options(__doc__)
    penalize = by_where if args.mended else by_mask
    logits = torch.randn(LOGITS[args.device], device=args.device)

    perf = PerfRecorder("boolean_mask")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(logits)):
                with perf.range("penalties"):
                    for _ in range(STEPS):
                        logits = penalize(logits)
                with perf.range("tokens"):
                    logits.argmax(dim=1).tolist()
    perf.finalize()


if __name__ == "__main__":
    main()
