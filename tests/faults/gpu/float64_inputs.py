"""NumPy's arrays are float64, and so is everything that is computed from them on the GPU. Mended: float32."""

import numpy as np
import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run


def tone(_):
    toned = image
    for _ in range(4):
        toned = torch.erf(torch.lgamma(toned + 1.0))  # fault
    return toned


pixels = np.linspace(0.0, 1.0, pick(32 << 20, 1 << 8))
image = torch.from_numpy(pixels.astype(np.float32) if MENDED else pixels).to(DEVICE)
with torch.inference_mode():
    run(50, 32, tone=tone, results=result)
