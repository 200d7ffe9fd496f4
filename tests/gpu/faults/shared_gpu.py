"""Two processes of the same program take turns on one GPU, and each is half as fast.

pytorch/pytorch#14531: two inferences in parallel on one GPU took 10 ms instead of 5. Mended: one process (its launch).

perfharness launch -np 2 tests/gpu/faults/shared_gpu.py
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = {"cuda": 300, "cpu": 5}
SIDE = {"cuda": 4096, "cpu": 16}
PRODUCTS = 20


def main() -> None:
    args = parse_options(__doc__)
    side = SIDE[args.device]
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("shared_gpu")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES[args.device]):
            with perf.batch(index, total_items=side), perf.range("model"):
                hidden = weight
                for _ in range(PRODUCTS):
                    hidden = hidden @ weight * 0.01
                hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
