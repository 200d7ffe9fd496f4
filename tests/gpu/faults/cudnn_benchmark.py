"""`cudnn.benchmark` is on while each batch has another width: cuDNN tries its algorithms again for each.

pytorch/pytorch#2759: random sizes made steps ten times slower; microsoft/onnxruntime#709.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 24
CHANNELS = {"cuda": 128, "cpu": 4}
HEIGHT = {"cuda": 128, "cpu": 8}
WIDTH, STEP = 96, 4


def main() -> None:
    args = parse_options(__doc__)
    torch.backends.cudnn.benchmark = True
    channels, height = CHANNELS[args.device], HEIGHT[args.device]
    layers = [torch.nn.Conv2d(channels, channels, 3, padding=1) for _ in range(6)]
    network = torch.nn.Sequential(*layers).to(args.device)
    widest = WIDTH + STEP * BATCHES

    perf = PerfRecorder("cudnn_benchmark")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            width = WIDTH + STEP * index
            image = torch.rand(8, channels, height, width, device=args.device)
            with perf.batch(index, total_items=8):
                with perf.range("pad"):
                    if args.mended:  # all are as wide as the widest, for which cuDNN has chosen once
                        image = torch.nn.functional.pad(image, (0, widest - width))
                with perf.range("model"):
                    output = network(image)  # fault
                with perf.range("results"):
                    output.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
