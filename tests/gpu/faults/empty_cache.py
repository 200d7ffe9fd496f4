"""The allocator's cache is emptied after each image "to save memory": every allocation reaches the driver again.

huggingface/transformers#31372: `torch.cuda.empty_cache()` in each step slowed the run; hao-ai-lab/FastVideo#606.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
IMAGES = 4
PIXELS = {"cuda": 4 << 20, "cpu": 1 << 8}


def enhance(image: torch.Tensor) -> torch.Tensor:
    bright = image * 1.5
    contrast = (bright - 0.5) * 1.2 + 0.5
    return contrast.clamp(0.0, 1.0)


def main() -> None:
    args = parse_options(__doc__)
    images = [torch.rand(3, PIXELS[args.device], device=args.device) for _ in range(IMAGES)]
    empties = not args.mended and args.device == "cuda"

    perf = PerfRecorder("empty_cache")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=IMAGES):
                brightest = []
                with perf.range("enhance"):
                    for image in images:
                        brightest.append(enhance(image).amax())
                        if empties:
                            torch.cuda.empty_cache()  # fault
                with perf.range("results"):
                    torch.stack(brightest).cpu()
    perf.finalize()


if __name__ == "__main__":
    main()
