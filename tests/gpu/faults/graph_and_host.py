"""The decoder is a CUDA graph, but the host prepares each step's metadata before it replays it, and the GPU waits.

sgl-project/sglang#5593: bubbles of 2 ms between replays while the host prepared the batch.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
STEPS = 6
REQUESTS = 64
PAGES = {"cuda": 200, "cpu": 4}
SIDE = {"cuda": 2048, "cpu": 16}
LAYERS = 60


def page_tables(lengths: list[int], pages: int) -> list[int]:
    """Every request's pages, made anew for each token."""
    table = []
    for request, length in enumerate(lengths):
        for page in range(pages):
            table.append((request * 7919 + page * length) % 65_521)  # fault
    return table


def main() -> None:
    args = parse_options(__doc__)
    side, pages = SIDE[args.device], PAGES[args.device]
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16) / side**0.5
    hidden = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    def layers() -> None:
        for _ in range(LAYERS):
            hidden.copy_(torch.relu(hidden @ weight))

    perf = PerfRecorder("graph_and_host")
    with torch.inference_mode():
        replay = layers
        if args.device == "cuda":
            layers()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                layers()
            replay = graph.replay
        lengths = [100 + request for request in range(REQUESTS)]
        table = page_tables(lengths, pages)
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=REQUESTS * STEPS):
                    for _ in range(STEPS):
                        with perf.range("metadata"):
                            if args.mended:  # only what is new: the last page of each request
                                table[:: max(pages, 1)] = [length % 65_521 for length in lengths]
                            else:
                                table = page_tables(lengths, pages)
                        with perf.range("decode"):
                            replay()
                            hidden[0, 0].item()
                        lengths = [length + 1 for length in lengths]
    perf.finalize()


if __name__ == "__main__":
    main()
