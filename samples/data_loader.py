"""A DataLoader whose workers decode images, and annotate what they do; data parallel with torchrun.

perfharness launch -w 1 -o out samples/data_loader.py
perfharness launch -w 1 -o out torchrun --nproc-per-node 2 samples/data_loader.py

Four worker processes decode JPEG files; each makes ranges of its own (recorder `data_loader_worker`). The main process
waits for batches and reduces each to the mean brightness of its images, which is checked at the end. With several ranks
each takes every n-th batch; batches have numbers of their own in all ranks, which says that their items add up.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from perfharness import PerfRecorder

IMAGES = Path(__file__).resolve().parent / "assets" / "images"
SIDE = 96
TOLERANCE = 1e-4


class Images(Dataset[torch.Tensor]):
    """The images of a folder, over and over; decoded where they are asked for."""

    def __init__(self, files: Sequence[Path], count: int) -> None:
        self.files = files
        self.count = count
        self.perf: PerfRecorder | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.perf is None:  # in each worker its own
            self.perf = PerfRecorder("data_loader_worker")
        with self.perf.range("load"):
            with self.perf.range("decode"), Image.open(self.files[index % len(self.files)]) as image:
                pixels = image.convert("RGB").resize((SIDE, SIDE))
            with self.perf.range("normalize"):
                return torch.from_numpy(np.asarray(pixels, dtype=np.float32) / 255.0)


class EveryNth:
    """Batches of consecutive images; of several ranks, each takes its own."""

    def __init__(self, batches: int, size: int, rank: int, ranks: int) -> None:
        self.numbers = range(rank, batches, ranks)
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        for number in self.numbers:
            yield list(range(number * self.size, (number + 1) * self.size))

    def __len__(self) -> int:
        return len(self.numbers)


def brightness(files: Sequence[Path], count: int) -> float:
    """What the mean over the first so many images has to be, without any loader."""
    means = []
    for file in files:
        with Image.open(file) as image:
            means.append(float(np.asarray(image.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32).mean() / 255))
    return sum(means[index % len(files)] for index in range(count)) / count


def main() -> int:
    parser = argparse.ArgumentParser(description="a DataLoader whose workers decode images")
    parser.add_argument("--batches", type=int, default=24, help="number of batches, of all ranks together")
    parser.add_argument("-b", "--batch-size", type=int, default=6, help="images a batch")
    parser.add_argument("--workers", type=int, default=4, help="worker processes of each rank; 0: none")
    parser.add_argument("--start", choices=("fork", "spawn", "forkserver"), default="fork", help="how workers start")
    args = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo")

    files = sorted(IMAGES.glob("*.jpg"))
    images = Images(files, args.batches * args.batch_size)
    order = EveryNth(args.batches, args.batch_size, rank, ranks)
    loader: DataLoader[torch.Tensor] = DataLoader(
        images,
        batch_sampler=order,
        num_workers=args.workers,
        multiprocessing_context=args.start if args.workers else None,
    )
    perf = PerfRecorder("data_loader", args)
    total, count = torch.zeros(1, dtype=torch.float64), 0
    with perf.range("pipeline"):
        loaded = iter(loader)
        for number in order.numbers:
            with perf.batch(number, total_items=args.batch_size):
                with perf.range("wait_for_loader"):
                    pixels = next(loaded)
                with perf.range("reduce"):
                    total += pixels.double().mean(dim=(1, 2, 3)).sum()
                    count += len(pixels)
    perf.finalize()

    if ranks > 1:
        counts = torch.tensor([total.item(), float(count)], dtype=torch.float64)
        dist.all_reduce(counts)
        total, count = counts[:1], int(counts[1])
        dist.destroy_process_group()
    expected = brightness(files, args.batches * args.batch_size)
    if rank == 0:
        print(f"{count} images on {ranks} rank(s): mean brightness {total.item() / count:.4f}")
    return 0 if abs(total.item() / count - expected) < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
