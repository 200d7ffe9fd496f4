"""Each batch is uploaded on the stream that computes, so the GPU computes nothing meanwhile.

KellerJordan/modded-nanogpt#231: a stream of its own lets transfers overlap computing; tensorflow/tensorflow#20628.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
FLOATS = {"cuda": 128 << 20, "cpu": 1 << 12}
SIDE = {"cuda": 4096, "cpu": 16}
PRODUCTS = 50


def upload_now(host: torch.Tensor, device: str) -> Callable[[], torch.Tensor]:
    def upload() -> torch.Tensor:
        return host.to(device, non_blocking=True)  # fault

    return upload


def upload_ahead(host: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The next batch travels on a stream of its own, into the other of two buffers."""
    copying = torch.cuda.Stream()
    buffers = [torch.empty_like(host, device="cuda") for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    turn = 0

    def copy_into(slot: int) -> None:
        copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copying):
            buffers[slot].copy_(host, non_blocking=True)
            copied[slot].record()

    def upload() -> torch.Tensor:
        nonlocal turn
        here, turn = turn, 1 - turn
        copied[here].wait()
        copy_into(turn)
        return buffers[here]

    copy_into(0)
    return upload


def main() -> None:
    args = parse_options(__doc__)
    on_gpu = args.device == "cuda"
    side = SIDE[args.device]
    host = torch.ones(FLOATS[args.device], pin_memory=on_gpu)
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)
    upload = upload_ahead(host) if args.mended and on_gpu else upload_now(host, args.device)

    perf = PerfRecorder("copy_not_overlapped")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=64):
                with perf.range("upload"):
                    images = upload()
                with perf.range("model"):
                    hidden = images[: side * side].view(side, side).to(torch.bfloat16)
                    for _ in range(PRODUCTS):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
