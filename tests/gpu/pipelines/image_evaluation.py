"""Evaluation of a torchvision ResNet-50 with random weights on a folder of JPEG files, after torchvision's reference
script: without perfharness. image_evaluation.toml annotates it. Options follow what a diagnosis may advise.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18, resnet50
from torchvision.transforms import v2

CLASSES = 10
PHOTOGRAPH = (500, 375)


def write_photographs(folder: Path, count: int) -> None:
    """As many different photographs, in a folder for each class."""
    random = np.random.default_rng(0)
    for index in range(count):
        target = folder / f"class_{index % CLASSES}"
        target.mkdir(exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        coarse.resize(PHOTOGRAPH, Image.Resampling.BICUBIC).save(target / f"{index}.jpg", quality=90)


def to_device(batch: list[torch.Tensor], device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    images, targets = batch
    return images.to(device, dtype, non_blocking=True), targets.to(device, non_blocking=True)


def accuracy(output: torch.Tensor, targets: torch.Tensor, ranks: tuple[int, ...] = (1, 5)) -> list[float]:
    """Share of the targets among the best so many."""
    best = output.topk(max(ranks), dim=1).indices.eq(targets[:, None])
    return [best[:, :rank].any(dim=1).float().mean().item() for rank in ranks]


def evaluate_next(model: Any, batches: Iterator[Any], batch_size: int, device: str, dtype: torch.dtype) -> list[float]:
    images, targets = to_device(next(batches), device, dtype)
    output = model(images)
    loss = torch.nn.functional.cross_entropy(output.float(), targets)
    assert len(images) == batch_size
    return [loss.item(), *accuracy(output, targets)]


def evaluate(model: Any, loader: DataLoader[Any], device: str, dtype: torch.dtype) -> list[list[float]]:
    batches = iter(loader)
    with torch.inference_mode():
        return [evaluate_next(model, batches, loader.batch_size, device, dtype) for _ in range(len(loader))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="weights and images in bfloat16, channels last")
    args = parser.parse_args()
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    model = (resnet50 if args.device == "cuda" else resnet18)(num_classes=CLASSES).to(args.device, dtype).eval()
    if args.bf16:
        model = model.to(memory_format=torch.channels_last)
    steps = [v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder), args.batches * args.batch_size)
        loader = DataLoader(
            ImageFolder(folder, transform), args.batch_size, num_workers=args.workers, pin_memory=args.pin_memory
        )
        found = evaluate(model, loader, args.device, dtype)
    loss, top_1, top_5 = np.mean(found, axis=0)
    print(f"{len(found)} batches: loss {loss:.3f}, top 1 {top_1:.3f}, top 5 {top_5:.3f}")


if __name__ == "__main__":
    main()
