"""NumPy's arrays are float64, and so is everything that is computed from them on the GPU.

vispy/vispy#6 and dfalbel/torch#12: float64 reached the GPU by default, half the numbers a second for twice the memory.
"""

from __future__ import annotations

import numpy as np
import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
PIXELS = {"cuda": 32 << 20, "cpu": 1 << 8}


def main() -> None:
    args = parse_options(__doc__)
    pixels = np.linspace(0.0, 1.0, PIXELS[args.device])
    if args.mended:
        pixels = pixels.astype(np.float32)
    image = torch.from_numpy(pixels).to(args.device)

    perf = PerfRecorder("float64_inputs")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=32):
                with perf.range("tone"):
                    toned = image
                    for _ in range(4):
                        toned = torch.erf(torch.lgamma(toned + 1.0))  # fault
                with perf.range("results"):
                    toned.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
