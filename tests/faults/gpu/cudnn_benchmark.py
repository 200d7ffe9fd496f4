"""`cudnn.benchmark` tries all algorithms for each new width. Mended: all are padded to the widest."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

BATCHES, WIDTH, STEP = 24, 96, 4
CHANNELS, HEIGHT = pick((128, 128), (4, 8))
WIDEST = WIDTH + STEP * BATCHES


def pad(index):
    image = images[index]
    return torch.nn.functional.pad(image, (0, WIDEST - image.shape[3])) if MENDED else image


def model(image):
    return network(image)  # fault


torch.backends.cudnn.benchmark = True
layers = [torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(6)]
network = torch.nn.Sequential(*layers).to(DEVICE)
images = [torch.rand(8, CHANNELS, HEIGHT, WIDTH + STEP * index, device=DEVICE) for index in range(BATCHES)]
with torch.inference_mode():
    run(BATCHES, 8, pad=pad, model=model, results=result)
