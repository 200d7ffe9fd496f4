"""Activations are cloned before each step, to be safe, and the clones are never written to.

huggingface/transformers#36748: clones without a purpose were removed. Mended: the steps share one tensor.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
FLOATS = {"cuda": 256 << 20, "cpu": 1 << 10}
STEPS = 8


def main() -> None:
    args = parse_options(__doc__)
    activations = torch.zeros(FLOATS[args.device], device=args.device)
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("repeated_clones")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("steps"):
                    for _ in range(STEPS):
                        kept = activations
                        if not args.mended:
                            kept = activations.clone()  # fault
                        hidden = (weight * kept[0]) @ weight
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
