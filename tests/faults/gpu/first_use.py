"""The first batches call functions whose libraries and kernels have to be loaded. Mended: called before."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

SIDE = pick(4096, 16)


def model(index):
    if index < len(functions):
        functions[index]()  # fault
    multiply()
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def multiply():
    for _ in range(12):
        weight @ weight


weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
image = torch.randn(256, 256, device=DEVICE)
functions = [
    lambda: torch.linalg.qr(image),
    lambda: torch.fft.fft2(image),
    lambda: torch.sort(image),
    lambda: torch.conv2d(image.view(1, 1, 256, 256), image[:3, :3].reshape(1, 1, 3, 3)),
]
multiply()
if MENDED:
    for function in functions:
        function()
with torch.inference_mode():
    run(24, 8, model=model)
