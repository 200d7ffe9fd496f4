"""The boxes above a threshold are found image by image; how many there are has to reach the host each time.

pytorch/pytorch#131256: `nonzero` synchronises because its result's size depends on the data.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
IMAGES = 64
BOXES = {"cuda": 1 << 23, "cpu": 1 << 8}
KEPT = 100


def by_threshold(scores: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    kept = []
    for image in range(len(scores)):
        chosen = torch.nonzero(scores[image] > 0.9999).squeeze(1)  # fault
        kept.append(boxes[image, chosen[:KEPT]].sum(dim=0))
    return torch.stack(kept)


def by_rank(scores: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """The best of all images at once, of a fixed number."""
    chosen = scores.topk(KEPT, dim=1).indices
    return boxes.gather(1, chosen.unsqueeze(2).expand(-1, -1, boxes.shape[2])).sum(dim=1)


def main() -> None:
    args = parse_options(__doc__)
    select = by_rank if args.mended else by_threshold
    scores = torch.rand(IMAGES, BOXES[args.device], device=args.device)
    boxes = torch.rand(IMAGES, BOXES[args.device], 4, device=args.device)

    perf = PerfRecorder("nonzero_per_image")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=IMAGES):
                with perf.range("select"):
                    chosen = select(scores, boxes)
                with perf.range("results"):
                    chosen.cpu()
    perf.finalize()


if __name__ == "__main__":
    main()
