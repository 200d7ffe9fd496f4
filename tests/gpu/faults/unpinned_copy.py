"""Frames are sent with `non_blocking=True` from memory that is not pinned, so the call waits for the copy.

pytorch/pytorch#39694 and #42539: without pinned memory the argument has no effect, and nobody is told.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
FRAME_FLOATS = {"cuda": 20 << 20, "cpu": 1 << 10}
SIDE = {"cuda": 4096, "cpu": 16}
PRODUCTS = 30


def main() -> None:
    args = parse_options(__doc__)
    frames = torch.ones(FRAME_FLOATS[args.device])
    if args.mended and args.device == "cuda":
        frames = frames.pin_memory()
    side = SIDE[args.device]
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("unpinned_copy")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=16):
                with perf.range("upload"):
                    on_device = frames.to(args.device, non_blocking=True)  # fault
                with perf.range("model"):
                    hidden = on_device[: side * side].view(-1, min(side, len(on_device))).to(torch.bfloat16)
                    for _ in range(PRODUCTS):
                        hidden = hidden[:, :side] @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
