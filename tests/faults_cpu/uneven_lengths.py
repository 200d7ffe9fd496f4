"""Sequences go to ranks in turn; questions and answers alternate, so that one rank gets all the long ones.

lightseekorg/TorchSpec#13. Mended: the longest first, each to the rank with the least.
"""

from __future__ import annotations

import random
import sys

import torch
from two_ranks import joined

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 20
SEQUENCES = 16
WIDTH = 64


def partition(lengths: list[int]) -> list[list[int]]:
    shares: list[list[int]] = [[], []]
    if MENDED:
        for length in sorted(lengths, reverse=True):
            min(shares, key=sum).append(length)
    else:
        for number, length in enumerate(lengths):
            shares[number % 2].append(length)
    return shares


with joined() as rank:
    perf = PerfRecorder("faults")
    drawn = random.Random(3)
    more = 0
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            lengths = [drawn.randint(20, 60) if number % 2 else drawn.randint(500, 600) for number in range(SEQUENCES)]
            shares = partition(lengths)
            more += abs(sum(shares[0]) - sum(shares[1])) // 100
            with perf.batch(index, total_items=SEQUENCES, shared=True):
                with perf.range("score"):
                    total = torch.zeros(WIDTH)
                    for length in shares[1 - rank]:
                        hidden = torch.ones(length, WIDTH)
                        total += ((hidden @ hidden.T).softmax(dim=-1) @ hidden).sum(dim=0)
                with perf.range("gather"), perf.range("all_reduce", category="communication"):
                    torch.distributed.all_reduce(total)
    perf.finalize()
if rank == 0:
    print(more, "hundreds of tokens more in one rank")
