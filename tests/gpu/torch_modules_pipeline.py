"""A model in a loop, with no annotation at all: what --annotate-torch makes stages of.

perfharness launch --annotate FILE.toml --annotate-torch 2 tests/gpu/torch_modules_pipeline.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCHES = 16
BATCH_SIZE = 8


class Net(nn.Module):  # type: ignore[misc]
    """Everything that runs in it runs in its two children."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.AdaptiveAvgPool2d(8))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4096, 10))

    def forward(self, items: Tensor) -> Tensor:
        answer: Tensor = self.head(self.backbone(items))
        return answer


def infer(net: Net, items: Tensor) -> Tensor:
    """One batch; the loop calls nothing else."""
    with torch.no_grad():
        return net(items).cpu()


def main() -> None:
    torch.manual_seed(0)
    net = Net().cuda().eval()
    items = torch.randn(BATCH_SIZE, 3, 128, 128, device="cuda")
    for _ in range(BATCHES):
        infer(net, items)


if __name__ == "__main__":
    main()
