"""Matrix products in float32 leave the tensor cores idle: TF32 is off unless it is asked for.

pytorch/pytorch#153195: TF32 is disabled without a warning; mended here by bfloat16.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
LAYERS = 8
SIDE = {"cuda": 4096, "cpu": 16}


def main() -> None:
    args = parse_options(__doc__)
    side = SIDE[args.device]
    dtype = torch.bfloat16 if args.mended else torch.float32
    weight = torch.randn(side, side, device=args.device, dtype=dtype) / side**0.5
    inputs = torch.randn(side, side, device=args.device, dtype=dtype)

    perf = PerfRecorder("fp32_product")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=side):
                with perf.range("model"):
                    hidden = inputs
                    for _ in range(LAYERS):
                        hidden = hidden @ weight  # fault
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
