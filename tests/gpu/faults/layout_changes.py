"""Activations change between channels first and channels last around each layer, which takes longer than the layer.

tensorflow/tensorflow#8286: NHWC tensors were transposed to NCHW before and back after each convolution.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
LAYERS = 8
SHAPE = {"cuda": (64, 64, 112, 112), "cpu": (1, 4, 8, 8)}


def main() -> None:
    args = parse_options(__doc__)
    shape = SHAPE[args.device]
    images = torch.randn(shape, device=args.device, dtype=torch.bfloat16)
    if args.mended:
        images = images.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(shape[1], shape[1], 1, 1, device=args.device, dtype=torch.bfloat16)
    weight = weight.contiguous(memory_format=torch.channels_last)

    perf = PerfRecorder("layout_changes")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=len(images)):
                with perf.range("model"):
                    hidden = images
                    for _ in range(LAYERS):
                        if not args.mended:
                            hidden = hidden.contiguous(memory_format=torch.channels_last)  # fault
                        hidden = torch.nn.functional.conv2d(hidden, weight) * 0.1
                        if not args.mended:
                            hidden = hidden.contiguous(memory_format=torch.contiguous_format)  # fault
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
