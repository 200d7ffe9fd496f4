"""Hundreds of small kernels take longer to launch than to run. Mended: a CUDA graph."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

WIDTH = 256


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):  # fault
        normed = self.norm_1(hidden)
        attended = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return attended + self.down(torch.nn.functional.gelu(self.up(self.norm_2(attended))))


def as_graph(network):
    inputs = requests[0].clone()
    for _ in range(3):
        network(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = network(inputs)

    def replay(request):
        inputs.copy_(request)
        graph.replay()
        return outputs.clone()

    return replay


def infer(_):
    outputs = []
    for request in requests:
        outputs.append(model(request))  # fault
    return outputs


model = torch.nn.Sequential(*[Block() for _ in range(pick(12, 2))]).eval().to(DEVICE)
requests = [torch.randn(1, 16, WIDTH, device=DEVICE) for _ in range(8)]
with torch.inference_mode():
    if MENDED and DEVICE == "cuda":
        model = as_graph(model)
    run(50, len(requests), model=infer, results=lambda outputs: torch.cat(outputs).cpu())
