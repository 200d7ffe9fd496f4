"""Each layer is timed with `torch.cuda.synchronize()`, which was left in after the measurement.

HuguesTHOMAS/KPConv-PyTorch#22: such calls made a run 25 % slower; pytorch/pytorch#18012.
"""

from __future__ import annotations

import time

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
LAYERS = 200
SIDE = {"cuda": 2560, "cpu": 16}


def timed(layers: list[torch.Tensor], hidden: torch.Tensor, device: str) -> torch.Tensor:
    for weight in layers:
        started = time.perf_counter()
        hidden = torch.relu(hidden @ weight)
        if device == "cuda":
            torch.cuda.synchronize()  # fault
        time.perf_counter() - started
    return hidden


def untimed(layers: list[torch.Tensor], hidden: torch.Tensor, device: str) -> torch.Tensor:
    del device
    for weight in layers:
        hidden = torch.relu(hidden @ weight)
    return hidden


def main() -> None:
    args = parse_options(__doc__)
    side = SIDE[args.device]
    model = untimed if args.mended else timed
    layers = [torch.randn(side, side, device=args.device, dtype=torch.bfloat16) / side**0.5] * LAYERS
    hidden = torch.randn(side // 2, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("synchronize_per_layer")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(hidden)):
                with perf.range("model"):
                    output = model(layers, hidden, args.device)
                with perf.range("results"):
                    output.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
