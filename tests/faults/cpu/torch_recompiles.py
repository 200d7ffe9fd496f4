"""A compiled model gets another length in every batch, and is compiled anew. Mended: padded."""

import torch

from tests.faults.frame import MENDED, count, run, squaring

torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 1000
first, second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)


def counted(graph, _):
    count()
    return graph.forward


def forward(x):
    for _ in range(2):
        x = torch.relu(first(x)) + torch.tanh(second(x))
    return x.softmax(-1)


def infer(x):
    model(x)  # fault


model = torch.compile(forward, backend=counted, dynamic=False)
with torch.inference_mode():
    run(
        16,
        embed=lambda index: torch.randn(1, 64 if MENDED else 8 + index, 64),
        infer=infer,
        sample=squaring(200_000),
    )
