"""Keys and values grow by `torch.cat` for each token: the whole cache is read and written once a token.

huggingface/transformers#24115 and #30536: the concatenation copies the cache in each step of `generate`.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
TOKENS = 16
CACHE = {"cuda": (16, 16, 4096, 128), "cpu": (1, 2, 32, 8)}
"""Requests, heads, tokens so far, width of a head."""


def by_cat(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    query = new
    for _ in range(TOKENS):
        cache = torch.cat([cache, new], dim=2)  # fault
        query = torch.nn.functional.scaled_dot_product_attention(query, cache, cache)
    return query


def in_place(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The cache has room for the new tokens from the start."""
    query, length = new, cache.shape[2] - TOKENS
    for index in range(TOKENS):
        cache[:, :, length + index] = new[:, :, 0]
        seen = cache[:, :, : length + index + 1]
        query = torch.nn.functional.scaled_dot_product_attention(query, seen, seen)
    return query


def main() -> None:
    args = parse_options(__doc__)
    requests, heads, tokens, width = CACHE[args.device]
    decode = in_place if args.mended else by_cat
    room = tokens + (TOKENS if args.mended else 0)
    cache = torch.randn(requests, heads, room, width, device=args.device, dtype=torch.bfloat16)
    new = torch.randn(requests, heads, 1, width, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("cache_cat")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=requests * TOKENS):
                with perf.range("decode"):
                    output = decode(cache, new)
                with perf.range("results"):
                    output.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
