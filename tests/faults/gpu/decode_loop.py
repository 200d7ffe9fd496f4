"""A decoder launches the same short kernels anew for each token. Mended: a CUDA graph."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, run

TOKENS, LAYERS = 24, pick(8, 2)
WIDTH, HEADS, VOCABULARY, LENGTH = 512, 8, 8000, 128


def weight(*shape):
    return torch.randn(*shape, device=DEVICE) * 0.02


def step():
    """The next token, written over the last one, in a static cache."""
    hidden = embedding[token]
    mask = (places <= position).view(1, 1, 1, LENGTH)
    for (qkv, out, up, down), keys, values in zip(layers, all_keys, all_values, strict=True):  # fault
        query, key, value = (torch.rms_norm(hidden, [WIDTH]) @ qkv).view(3, 1, HEADS, 1, WIDTH // HEADS)
        keys.index_copy_(2, position, key)
        values.index_copy_(2, position, value)
        attended = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        hidden = hidden + attended.reshape(1, WIDTH) @ out
        hidden = hidden + torch.nn.functional.silu(torch.rms_norm(hidden, [WIDTH]) @ up) @ down
    token.copy_((hidden @ embedding.t()).argmax(dim=1))
    position.add_(1)


def decode(_):
    position.zero_()
    for _ in range(TOKENS):
        next_token()  # fault


with torch.inference_mode():
    embedding = weight(VOCABULARY, WIDTH)
    layers = [
        (weight(WIDTH, 3 * WIDTH), weight(WIDTH, WIDTH), weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH, WIDTH))
        for _ in range(LAYERS)
    ]
    all_keys = [torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS, device=DEVICE) for _ in layers]
    all_values = [torch.zeros_like(keys) for keys in all_keys]
    token, position = (torch.zeros(1, dtype=torch.long, device=DEVICE) for _ in range(2))
    places = torch.arange(LENGTH, device=DEVICE)
    next_token = step
    if MENDED and DEVICE == "cuda":
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        next_token = graph.replay
    run(50, TOKENS, decode=decode, results=lambda _: token.tolist())
