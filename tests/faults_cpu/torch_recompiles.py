"""A compiled model gets a sequence of another length in every batch and is compiled anew for each.

GeeeekExplorer/nano-vllm#105, NVIDIA/TensorRT-LLM#6142. Mended: the sequences are padded to one length.
"""

from __future__ import annotations

import sys

import torch

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, LONGEST = 16, 64
torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 1000
compilations = 0


def counted(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> object:
    global compilations
    compilations += 1
    return graph.forward


first, second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)


def forward(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = torch.relu(first(x)) + torch.tanh(second(x))
    return x.softmax(-1)


model = torch.compile(forward, backend=counted, dynamic=False)
perf = PerfRecorder("faults")
with perf.range("pipeline"), torch.inference_mode():
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("embed"):
                x = torch.randn(1, LONGEST if MENDED else 8 + index, 64)
            with perf.range("infer"):
                model(x)  # fault
            with perf.range("sample"):
                sum(value * value for value in range(200_000))
perf.finalize()
print(compilations, "compilations")
