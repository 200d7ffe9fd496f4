"""A tensor is printed after each layer "for now": it is copied to the host and formatted there.

pytorch/pytorch#126829: printing a tensor synchronises; pytorch/pytorch#6863: and formatting it is slow.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
LAYERS = 20
SIDE = {"cuda": 2048, "cpu": 16}


def main() -> None:
    args = parse_options(__doc__)
    side = SIDE[args.device]
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16) / side**0.5
    inputs = torch.randn(4 * side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("print_tensor")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(inputs)):
                with perf.range("model"):
                    hidden = inputs
                    for layer in range(LAYERS):
                        hidden = torch.relu(hidden @ weight)
                        if not args.mended:
                            print(layer, hidden)  # fault
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
