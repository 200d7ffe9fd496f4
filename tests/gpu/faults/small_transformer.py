"""Requests go through a small transformer one at a time: its hundreds of kernels take less time than to launch them.

pegainfer-project/pegainfer#910: each step of small kernels paid its launch overhead on the host; CUDA graphs mended it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
REQUESTS = 8
LAYERS = {"cuda": 12, "cpu": 2}
WIDTH = 256
TOKENS = 16

Model = Callable[[torch.Tensor], torch.Tensor]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # fault
        normed = self.norm_1(hidden)
        attended = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return attended + self.down(torch.nn.functional.gelu(self.up(self.norm_2(attended))))


def as_graph(model: Model, example: torch.Tensor) -> Model:
    """The same model as one replay of a CUDA graph."""
    inputs = example.clone()
    for _ in range(3):
        model(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(inputs)

    def replay(request: torch.Tensor) -> torch.Tensor:
        inputs.copy_(request)
        graph.replay()
        return outputs.clone()

    return replay


def main() -> None:
    args = parse_options(__doc__)
    layers = [Block() for _ in range(LAYERS[args.device])]
    network = torch.nn.Sequential(*layers).eval().to(args.device)
    requests = [torch.randn(1, TOKENS, WIDTH, device=args.device) for _ in range(REQUESTS)]

    perf = PerfRecorder("small_transformer")
    with torch.inference_mode():
        model: Model = as_graph(network, requests[0]) if args.mended and args.device == "cuda" else network
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=REQUESTS):
                    outputs = []
                    with perf.range("model"):
                        for request in requests:
                            outputs.append(model(request))  # fault
                    with perf.range("results"):
                        torch.cat(outputs).cpu()
    perf.finalize()


if __name__ == "__main__":
    main()
