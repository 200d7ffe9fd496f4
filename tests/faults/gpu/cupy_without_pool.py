"""CuPy allocates without its memory pool, which another library has replaced. Mended: with it."""

import cupy
import numpy as np

from tests.faults.frame import MENDED, run

FRAMES = 8


def enhance(_):
    brightest = []
    for _ in range(FRAMES):
        bright = frame * np.float32(1.5)  # fault
        contrast = (bright - np.float32(0.5)) * np.float32(1.2)  # fault
        brightest.append(cupy.clip(contrast, 0.0, 1.0).max())  # fault
    return brightest


if not MENDED:
    cupy.cuda.set_allocator(None)
frame = cupy.linspace(0.0, 1.0, 32 << 20, dtype=np.float32)
run(50, FRAMES, enhance=enhance, results=lambda brightest: float(cupy.stack(brightest).max()))
