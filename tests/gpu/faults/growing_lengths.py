"""Sequences of ever new lengths ask for ever larger buffers, which no block of the allocator's cache fits.

pytorch/pytorch#96995: such programs allocate new segments all the time; sgl-project/SpecForge#739.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 60
WIDTH = {"cuda": 2048, "cpu": 8}
LENGTH, STEP = 1024, 256


def encode(tokens: torch.Tensor) -> torch.Tensor:
    squared = tokens * tokens  # fault
    activated = torch.tanh(squared)  # fault
    return (activated * tokens).amax()  # fault


def main() -> None:
    args = parse_options(__doc__)
    width = WIDTH[args.device]
    longest = LENGTH + STEP * BATCHES
    everything = torch.ones(longest, width, device=args.device)
    if args.mended:  # the longest first: every later one fits into its blocks
        encode(everything)

    perf = PerfRecorder("growing_lengths")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                tokens = everything[: LENGTH + STEP * index]
                with perf.range("encode"):
                    best = encode(tokens)
                with perf.range("results"):
                    best.item()
    perf.finalize()


if __name__ == "__main__":
    main()
