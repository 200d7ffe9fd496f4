"""A model compiled for fixed shapes meets a new sequence length in each batch, and is compiled again.

huggingface/transformers#37908: too many recompilations once the input's length changed.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 16
WIDTH = {"cuda": 1024, "cpu": 16}
LAYERS = 16
LENGTH, STEP = 256, 8


def main() -> None:
    args = parse_options(__doc__)
    torch._dynamo.config.recompile_limit = 1000
    width = WIDTH[args.device]
    weight = torch.randn(width, width, device=args.device) / width**0.5

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(LAYERS):
            hidden = torch.nn.functional.gelu(hidden @ weight) + hidden
        return hidden

    # The tracer of PyTorch's compiler without its code generator: a new length then takes milliseconds, not seconds.
    model = torch.compile(forward, backend="aot_eager", dynamic=args.mended)
    if args.mended:
        model(torch.randn(16, LENGTH - STEP, width, device=args.device))

    perf = PerfRecorder("compile_lengths")
    with perf.range("pipeline"), torch.no_grad():
        for index in range(BATCHES):
            tokens = torch.randn(16, LENGTH + STEP * index, width, device=args.device)
            with perf.batch(index, total_items=16):
                with perf.range("model"):
                    output = model(tokens)  # fault
                with perf.range("results"):
                    output.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
