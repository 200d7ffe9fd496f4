"""Photographs are decoded in full on the CPU, in the loop, before a network that takes 224 pixels of them.

NVIDIA/DALI#11: decoding, not resizing, keeps the GPU waiting. Mended: photographs are stored in the size needed.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from fault_options import parse_options
from PIL import Image

from perfharness import PerfRecorder

BATCHES = 24
SIDE = {"cuda": 1600, "cpu": 128}
PHOTOGRAPHS = 2
INPUT = 224


def photograph(side: int) -> bytes:
    rows = np.arange(side, dtype=np.uint32)
    noise = (rows[:, None] * 31 + rows[None, :] * 17) % 251
    file = io.BytesIO()
    Image.fromarray(np.stack([noise, noise.T, noise], axis=2).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def decode(encoded: bytes) -> torch.Tensor:
    image = Image.open(io.BytesIO(encoded))
    image.load()  # fault
    small = image.convert("RGB").resize((INPUT, INPUT), Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(small))


def main() -> None:
    args = parse_options(__doc__)
    encoded = photograph(INPUT if args.mended else SIDE[args.device])
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("jpeg_on_cpu")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=PHOTOGRAPHS):
                with perf.range("decode"):
                    photographs = [decode(encoded) for _ in range(PHOTOGRAPHS)]
                with perf.range("model"):
                    hidden = weight * torch.stack(photographs).to(args.device).float().mean()
                    for _ in range(150):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
