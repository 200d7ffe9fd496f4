"""Tensor parallelism by hand: a small transformer whose heads and hidden units are split over ranks.

torchrun --nproc-per-node 2 samples/tensor_parallel.py
perfharness launch -w 1 -o out torchrun --nproc-per-node 2 samples/tensor_parallel.py
perfharness launch -w 1 -o out --config samples/two_gpus.toml torchrun --nproc-per-node 2 samples/tensor_parallel.py

Each rank holds a part of every matrix (Megatron's split: columns of the first product, rows of the second) and computes
a part of every sum, so each layer takes two all-reduces. Over gloo on the CPU, over NCCL where there is a GPU for each
rank; with one rank nothing is split. Weights and inputs are random and seeded; before it measures, each rank compares
its result with that of the same network unsplit, and ends with 1 where they differ. With `--slow-rank` one rank does
extra work in each batch, so that the others wait for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional

from perfharness import PerfRecorder

SEED = 20
TOLERANCE = 1e-3
VOCABULARY = 256


@dataclass(frozen=True)
class Rank:
    """Which rank this is, of how many, and where it computes."""

    number: int
    count: int
    device: torch.device


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, or of the part of it that one rank holds: (in, out) matrices."""

    query_key_value: torch.Tensor
    attention_out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Network:
    """An embedding, layers, and how many heads those hold."""

    embedding: torch.Tensor
    layers: list[Layer]
    heads: int


def join_ranks() -> Rank:
    """The rank that torchrun made this process, in a group with the others."""
    number, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    use_gpu = torch.cuda.is_available() and torch.cuda.device_count() > local
    device = torch.device("cuda", local) if use_gpu else torch.device("cpu")
    if use_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if count > 1:
        dist.init_process_group("nccl" if use_gpu else "gloo")
    return Rank(number, count, device)


def make_network(args: argparse.Namespace, device: torch.device) -> Network:
    """The whole network, the same in every rank."""
    generator = torch.Generator().manual_seed(SEED)

    def matrix(inputs: int, outputs: int) -> torch.Tensor:
        return (torch.randn(inputs, outputs, generator=generator) / inputs**0.5).to(device)

    width = args.width
    layers = [
        Layer(matrix(width, 3 * width), matrix(width, width), matrix(width, 4 * width), matrix(4 * width, width))
        for _ in range(args.layers)
    ]
    return Network(matrix(VOCABULARY, width), layers, args.heads)


def split(network: Network, rank: Rank) -> Network:
    """The part of the network that a rank holds: some heads, and some hidden units."""

    def columns(matrix: torch.Tensor) -> torch.Tensor:
        return matrix.chunk(rank.count, dim=1)[rank.number].contiguous()

    def rows(matrix: torch.Tensor) -> torch.Tensor:
        return matrix.chunk(rank.count, dim=0)[rank.number].contiguous()

    def part(layer: Layer) -> Layer:
        query_key_value = torch.cat([columns(one) for one in layer.query_key_value.chunk(3, dim=1)], dim=1)
        return Layer(query_key_value, rows(layer.attention_out), columns(layer.up), rows(layer.down))

    return Network(network.embedding, [part(layer) for layer in network.layers], network.heads // rank.count)


class Model:
    """Runs a network, split or not; sums over ranks where it is split."""

    def __init__(self, network: Network, perf: PerfRecorder | None, *, is_split: bool) -> None:
        self.network = network
        self.perf = perf
        self.is_split = is_split

    def attention(self, hidden: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Causal self-attention over the heads of this rank: (batch, length, width) -> the same, a part of the sum."""
        batch, length, _ = hidden.shape
        parts = (functional.layer_norm(hidden, hidden.shape[-1:]) @ layer.query_key_value).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.network.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, -1) @ layer.attention_out

    def feed_forward(self, hidden: torch.Tensor, layer: Layer) -> torch.Tensor:
        """The two products of the hidden units of this rank, a part of the sum."""
        return functional.gelu(functional.layer_norm(hidden, hidden.shape[-1:]) @ layer.up) @ layer.down

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        if self.is_split and self.perf is not None:
            with self.perf.range("all_reduce", category="communication"):
                dist.all_reduce(part)
        elif self.is_split:
            dist.all_reduce(part)
        return part

    def run(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) tokens -> the most likely next one of each, by the embedding itself."""
        hidden = self.network.embedding[tokens]
        for layer in self.network.layers:
            if self.perf is None:
                hidden = hidden + self.total(self.attention(hidden, layer))
                hidden = hidden + self.total(self.feed_forward(hidden, layer))
                continue
            with self.perf.range("attention"):
                hidden = hidden + self.total(self.attention(hidden, layer))
            with self.perf.range("feed_forward"):
                hidden = hidden + self.total(self.feed_forward(hidden, layer))
        return hidden


def is_correct(network: Network, rank: Rank, tokens: torch.Tensor) -> bool:
    """Whether the split network gives what the whole one gives."""
    whole = Model(network, None, is_split=False).run(tokens)
    parts = Model(split(network, rank), None, is_split=rank.count > 1).run(tokens)
    return bool(torch.allclose(whole, parts, rtol=TOLERANCE, atol=TOLERANCE))


def extra_work(args: argparse.Namespace, rank: Rank) -> None:
    """What makes a rank slow: host work, or products on its GPU."""
    if rank.number != args.slow_rank:
        return
    if args.slow_host_ms:
        until = time.perf_counter() + args.slow_host_ms / 1e3
        while time.perf_counter() < until:
            pass
    if args.slow_products:
        matrix = torch.ones(2048, 2048, device=rank.device)
        for _ in range(args.slow_products):
            matrix @ matrix


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description="a small transformer whose layers are split over ranks")
    parser.add_argument("--batches", type=int, default=20, help="number of batches")
    parser.add_argument("-b", "--batch-size", type=int, default=4, help="sequences a batch, one item each")
    parser.add_argument("--length", type=int, default=64, help="tokens a sequence")
    parser.add_argument("--width", type=int, default=256, help="of the hidden state")
    parser.add_argument("--heads", type=int, default=8, help="of the attention; a multiple of the number of ranks")
    parser.add_argument("--layers", type=int, default=4, help="number of layers")
    parser.add_argument("--slow-rank", type=int, default=-1, help="the rank that does extra work in each batch")
    parser.add_argument("--slow-host-ms", type=float, default=0.0, help="its extra work on the host")
    parser.add_argument("--slow-products", type=int, default=0, help="its extra matrix products")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if args.heads % ranks or args.width % args.heads:
        print(f"--heads {args.heads} is no multiple of {ranks} ranks, or --width none of it", file=sys.stderr)
        return 2
    rank = join_ranks()
    generator = torch.Generator().manual_seed(SEED + 1)
    shape = (args.batches + 1, args.batch_size, args.length)
    batches = torch.randint(VOCABULARY, shape, generator=generator)
    network = make_network(args, rank.device)
    with torch.inference_mode():
        if not is_correct(network, rank, batches[-1].to(rank.device)):
            print(f"rank {rank.number}: the split network differs from the whole one", file=sys.stderr)
            return 1
        perf = PerfRecorder("tensor_parallel", args)
        model = Model(split(network, rank), perf, is_split=rank.count > 1)
        with perf.range("pipeline"):
            for index in range(args.batches):
                with perf.batch(index, total_items=args.batch_size, shared=rank.count > 1):
                    with perf.range("prepare"):
                        tokens = batches[index].to(rank.device)
                        extra_work(args, rank)
                    hidden = model.run(tokens)
                    with perf.range("answer"):
                        (hidden[:, -1] @ network.embedding.T).argmax(dim=-1).cpu()
        perf.finalize()
    if rank.number == 0:
        print(f"{args.batches} batches on {rank.count} rank(s); the split network equals the whole one")
    if rank.count > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
