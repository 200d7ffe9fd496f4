"""CuPy allocates without its memory pool, as it does after another library has set its own allocator.

NVIDIA/cudf#12222 and #8730: importing a library replaced the pool, and operations took a thousand times longer.
"""

from __future__ import annotations

import numpy as np
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
FRAMES = 8
PIXELS = {"cuda": 32 << 20, "cpu": 1 << 8}


def main() -> None:
    args = parse_options(__doc__)
    xp = np
    if args.device == "cuda":
        import cupy

        xp = cupy
        if not args.mended:
            cupy.cuda.set_allocator(None)
    frame = xp.linspace(0.0, 1.0, PIXELS[args.device], dtype=np.float32)

    perf = PerfRecorder("cupy_without_pool")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=FRAMES):
                brightest = []
                with perf.range("enhance"):
                    for _ in range(FRAMES):
                        bright = frame * np.float32(1.5)  # fault
                        contrast = (bright - np.float32(0.5)) * np.float32(1.2)  # fault
                        brightest.append(xp.clip(contrast, 0.0, 1.0).max())  # fault
                with perf.range("results"):
                    float(xp.stack(brightest).max())
    perf.finalize()


if __name__ == "__main__":
    main()
