"""Probabilities are computed one request at a time: a row is one block, and the other multiprocessors are idle.

microsoft/onnxruntime#9696: a softmax works on each row in one block; pytorch/pytorch#4973 for how the batch matters.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
REQUESTS = 64
WORDS = {"cuda": 1 << 18, "cpu": 1 << 6}


def one_by_one(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.softmax(row, dim=1) for row in logits.split(1)])  # fault


def together(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits, dim=1)


def main() -> None:
    args = parse_options(__doc__)
    probabilities_of = together if args.mended else one_by_one
    # As many requests at once as there are multiprocessors for them, four times over.
    requests = REQUESTS * 8 if args.mended else REQUESTS
    logits = torch.randn(requests, WORDS[args.device], device=args.device)

    perf = PerfRecorder("one_row")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(logits)):
                with perf.range("probabilities"):
                    probabilities = probabilities_of(logits)
                with perf.range("results"):
                    probabilities[:, 0].cpu()
    perf.finalize()


if __name__ == "__main__":
    main()
