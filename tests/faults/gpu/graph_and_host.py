"""The host makes all page tables anew before each replay of a CUDA graph. Mended: only what is new."""

import torch

from tests.faults.frame import DEVICE, MENDED, batches, pick, stage

STEPS, REQUESTS = 6, 64
PAGES, SIDE = pick((200, 2048), (4, 16))


def page_tables():
    """Every request's pages, made anew for each token."""
    table = []
    for request, length in enumerate(lengths):
        for page in range(PAGES):
            table.append((request * 7919 + page * length) % 65_521)  # fault
    return table


def layers():
    for _ in range(60):
        hidden.copy_(torch.relu(hidden @ weight))


weight = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16) / SIDE**0.5
hidden = torch.randn(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    replay = layers
    if DEVICE == "cuda":
        layers()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layers()
        replay = graph.replay
    lengths = [100 + request for request in range(REQUESTS)]
    table = page_tables()
    for _ in batches(50, REQUESTS * STEPS):
        for _ in range(STEPS):
            with stage("metadata"):
                if MENDED:
                    table[::PAGES] = [length % 65_521 for length in lengths]
                else:
                    table = page_tables()
            with stage("decode"):
                replay()
                hidden[0, 0].item()
            lengths = [length + 1 for length in lengths]
