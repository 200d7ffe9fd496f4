"""Strides of a detector's feature levels become tensors on the GPU one number at a time, again for each image.

pytorch/vision#5515: `torch.tensor(image_size[0] // g[0], device=device)` in the anchor generator synchronised.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
IMAGES = 64
LEVELS = 5


def strides_as_tensors(size: int, device: str) -> list[torch.Tensor]:
    strides = []
    for level in range(LEVELS):
        strides.append(torch.tensor(size // (size >> (level + 2)), device=device))  # fault
    return strides


def strides_as_numbers(size: int, device: str) -> list[int]:
    del device
    return [size // (size >> (level + 2)) for level in range(LEVELS)]


def main() -> None:
    args = parse_options(__doc__)
    strides_of = strides_as_numbers if args.mended else strides_as_tensors
    side = 128 if args.device == "cuda" else 8
    grid = torch.arange(side * side, device=args.device, dtype=torch.float32).repeat(IMAGES, 64)

    perf = PerfRecorder("anchor_tensors")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=IMAGES):
                with perf.range("anchors"):
                    anchors = [
                        grid[image] * stride for image in range(IMAGES) for stride in strides_of(512, args.device)
                    ]
                with perf.range("results"):
                    torch.stack([anchor.amax() for anchor in anchors]).cpu()
    perf.finalize()


if __name__ == "__main__":
    main()
