"""The allocator's cache is emptied after each image. Mended: it is kept."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

IMAGES = 4


def enhance_one(image):
    bright = image * 1.5
    contrast = (bright - 0.5) * 1.2 + 0.5
    return contrast.clamp(0.0, 1.0)


def enhance(_):
    brightest = []
    for image in images:
        brightest.append(enhance_one(image).amax())
        if not MENDED:
            torch.cuda.empty_cache()  # fault
    return brightest


images = [torch.rand(3, pick(4 << 20, 1 << 8), device=DEVICE) for _ in range(IMAGES)]
run(50, IMAGES, enhance=enhance, results=lambda brightest: torch.stack(brightest).cpu())
