"""The first batches call functions that no batch has called before, and their libraries and kernels are loaded.

pytorch/pytorch#44269 and microsoft/onnxruntime#12197: the first inference took a second, the next ones 2 ms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 24
SIDE = {"cuda": 4096, "cpu": 16}
SLOW_BATCHES = 4


def main() -> None:
    args = parse_options(__doc__)
    side = SIDE[args.device]
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)
    image = torch.randn(256, 256, device=args.device)
    functions: list[Callable[[], object]] = [
        lambda: torch.linalg.qr(image),
        lambda: torch.fft.fft2(image),
        lambda: torch.sort(image),
        lambda: torch.conv2d(image.view(1, 1, 256, 256), image[:3, :3].reshape(1, 1, 3, 3)),
    ]
    assert len(functions) == SLOW_BATCHES

    def model() -> None:
        for _ in range(12):
            weight @ weight

    model()
    if args.mended:
        for function in functions:
            function()

    perf = PerfRecorder("first_use")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=8), perf.range("model"):
                if index < SLOW_BATCHES:
                    functions[index]()  # fault
                model()
                if args.device == "cuda":
                    torch.cuda.synchronize()
    perf.finalize()


if __name__ == "__main__":
    main()
