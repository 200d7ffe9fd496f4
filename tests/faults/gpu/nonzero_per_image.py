"""How many boxes are above a threshold reaches the host for each image. Mended: a fixed number of all."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

IMAGES, KEPT = 64, 100
BOXES = pick(1 << 23, 1 << 8)


def select(_):
    if MENDED:
        chosen = scores.topk(KEPT, dim=1).indices
        return boxes.gather(1, chosen.unsqueeze(2).expand(-1, -1, boxes.shape[2])).sum(dim=1)
    kept = []
    for image in range(len(scores)):
        chosen = torch.nonzero(scores[image] > 0.9999).squeeze(1)  # fault
        kept.append(boxes[image, chosen[:KEPT]].sum(dim=0))
    return torch.stack(kept)


scores = torch.rand(IMAGES, BOXES, device=DEVICE)
boxes = torch.rand(IMAGES, BOXES, 4, device=DEVICE)
run(50, IMAGES, select=select, results=lambda chosen: chosen.cpu())
