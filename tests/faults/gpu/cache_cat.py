"""Keys and values grow by `torch.cat`, which copies the cache for each token. Mended: there is room for them."""

import torch

from tests.faults.frame import DEVICE, MENDED, pick, result, run

TOKENS = 16
REQUESTS, HEADS, LENGTH, WIDTH = pick((16, 16, 4096, 128), (1, 2, 32, 8))


def decode(_):
    if MENDED:
        return in_place()
    query, longer = new, cache
    for _ in range(TOKENS):
        longer = torch.cat([longer, new], dim=2)  # fault
        query = torch.nn.functional.scaled_dot_product_attention(query, longer, longer)
    return query


def in_place():
    query = new
    for index in range(TOKENS):
        cache[:, :, LENGTH + index] = new[:, :, 0]
        seen = cache[:, :, : LENGTH + index + 1]
        query = torch.nn.functional.scaled_dot_product_attention(query, seen, seen)
    return query


room = LENGTH + (TOKENS if MENDED else 0)
cache = torch.randn(REQUESTS, HEADS, room, WIDTH, device=DEVICE, dtype=torch.bfloat16)
new = torch.randn(REQUESTS, HEADS, 1, WIDTH, device=DEVICE, dtype=torch.bfloat16)
with torch.inference_mode():
    run(50, REQUESTS * TOKENS, decode=decode, results=result)
