"""Two workers decode images for a GPU that needs many: the loop waits for the loader in each batch.

open-edge-platform/geti#5958: two workers left the GPU idle for 70 to 92 % of the time; one image takes 10 ms here.
"""

from __future__ import annotations

import hashlib

import torch
from fault_options import parse_options
from torch.utils.data import DataLoader, Dataset

from perfharness import PerfRecorder

BATCHES = 24
IMAGES = 4
IMAGE_BYTES = 15_000_000


class Images(Dataset[torch.Tensor]):
    """Images whose decoding is so many bytes of SHA-256, which takes a core as long wherever it runs."""

    def __init__(self, is_decoded: bool) -> None:
        self.is_decoded = is_decoded
        self.encoded = bytes(IMAGE_BYTES)

    def __len__(self) -> int:
        return BATCHES * IMAGES

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.is_decoded:
            hashlib.sha256(self.encoded).digest()  # fault
        return torch.full((3, 224, 224), index / len(self))


def main() -> None:
    args = parse_options(__doc__)
    # The mended twin reads images that were decoded once; more workers would help only where there are more cores.
    loader = DataLoader(Images(args.mended), batch_size=IMAGES, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("loader_workers")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=IMAGES):
                with perf.range("load"):
                    images = next(batches)  # fault
                with perf.range("model"):
                    hidden = weight * images.to(args.device).mean()
                    for _ in range(25):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
