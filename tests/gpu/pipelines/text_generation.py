"""Text generation with `transformers`, of a Llama with random weights: what a user's script looks like, without
perfharness. text_generation.toml annotates it. Options follow what a diagnosis may advise.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 32_000


@dataclass(frozen=True)
class Size:
    width: int
    layers: int
    prompt_tokens: int
    new_tokens: int


SIZES = {"cuda": Size(1024, 12, 64, 32), "cpu": Size(64, 2, 8, 4)}


def make_model(size: Size, device: str) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 64,
        num_key_value_heads=size.width // 64,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config).to(device, torch.bfloat16).eval()


def answer(model: Any, prompts: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """The new tokens of each prompt."""
    tokens = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=False, pad_token_id=0, **options
    )
    new: torch.Tensor = tokens[:, prompts.shape[1] :].cpu()
    return new


def answer_all(model: Any, batches: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    return [answer(model, prompts, options) for prompts in batches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("-b", "--batch-size", type=int, default=4)
    parser.add_argument("--static-cache", action="store_true", help="compiled decoding: a static cache and CUDA graphs")
    args = parser.parse_args()
    torch.manual_seed(0)
    size = SIZES[args.device]
    model = make_model(size, args.device)
    options: dict[str, Any] = {"max_new_tokens": size.new_tokens, "min_new_tokens": size.new_tokens}
    if args.static_cache:
        options["cache_implementation"] = "static"
    shape = (args.batch_size, size.prompt_tokens)
    batches = [torch.randint(1, VOCABULARY, shape, device=args.device) for _ in range(args.batches)]
    answers = answer_all(model, batches, options)
    print(f"{sum(len(tokens) for tokens in answers)} answers of {answers[0].shape[1]} tokens")


if __name__ == "__main__":
    main()
