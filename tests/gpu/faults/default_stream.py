"""Two independent small models share the default stream, so neither fills the GPU while the other waits.

dmlc/xgboost#9396 and arrayfire/arrayfire#926: work on the legacy default stream never runs concurrently.
"""

from __future__ import annotations

import contextlib

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
STEPS = 12
WORDS = {"cuda": 1 << 20, "cpu": 1 << 6}
MODELS = 4


def main() -> None:
    args = parse_options(__doc__)
    logits = [torch.randn(1, WORDS[args.device], device=args.device) for _ in range(MODELS)]
    streams = [torch.cuda.Stream() for _ in logits] if args.mended and args.device == "cuda" else []
    if args.device == "cuda":
        torch.cuda.synchronize()

    perf = PerfRecorder("default_stream")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=MODELS):
                with perf.range("models"):
                    outputs = []
                    for number, row in enumerate(logits):
                        stream = torch.cuda.stream(streams[number]) if streams else contextlib.nullcontext()
                        with stream:
                            for _ in range(STEPS):
                                probabilities = torch.softmax(row, dim=1)  # fault
                            outputs.append(probabilities.amax())
                    for other in streams:
                        other.synchronize()
                with perf.range("results"):
                    torch.stack(outputs).cpu()
    perf.finalize()


if __name__ == "__main__":
    main()
