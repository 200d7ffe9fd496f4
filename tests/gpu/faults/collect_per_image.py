"""`gc.collect()` after each image: the collector walks the whole heap, which holds a large vocabulary.

Mikubill/sd-webui-controlnet#1462: the call blocked for 200 ms each time; sgl-project/sglang#9241 for long pauses.
Annotated from outside: collect_per_image.toml.
"""

from __future__ import annotations

import gc

import torch
from fault_options import parse_options

IMAGES = 24
WORDS = {"cuda": 200_000, "cpu": 5_000}


def enhance(weight: torch.Tensor, prompt: int, *, collects: bool) -> float:
    brightest = float(denoise(weight, prompt).amax())
    release_memory(collects)
    return brightest


def denoise(weight: torch.Tensor, prompt: int) -> torch.Tensor:
    hidden = weight * prompt
    for _ in range(30):
        hidden = hidden @ weight * 0.01
    return hidden


def release_memory(collects: bool) -> None:
    if collects:
        gc.collect()  # fault


def enhance_all(weight: torch.Tensor, prompts: list[int], *, collects: bool) -> None:
    with torch.inference_mode():
        for prompt in prompts:
            enhance(weight, prompt, collects=collects)


def main() -> None:
    args = parse_options(__doc__)
    vocabulary = [(f"w{index}", [index, index + 1]) for index in range(WORDS[args.device])]
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)
    prompts = [len(pieces) for _, pieces in vocabulary[:IMAGES]]
    enhance_all(weight, prompts, collects=not args.mended)


if __name__ == "__main__":
    main()
