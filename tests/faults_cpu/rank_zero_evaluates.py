"""After every step one rank alone evaluates; the other is in the next reduction long before it.

horovod/horovod#403. Mended: each rank evaluates its half.
"""

from __future__ import annotations

import sys

import torch
from two_ranks import joined

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 20
EXAMPLES = 160
evaluated = 0


def evaluate(rank: int, weight: torch.Tensor) -> None:
    global evaluated
    mine = range(rank, EXAMPLES, 2) if MENDED else range(EXAMPLES if rank == 0 else 0)
    for example in mine:
        evaluated += 1
        (weight * float(example)).softmax(dim=-1).sum().item()


with joined(first=1) as rank:
    perf = PerfRecorder("faults")
    weight = torch.randn(200, 200, generator=torch.Generator().manual_seed(1))
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("step"):
                    part = weight @ weight
                with perf.range("evaluate"):
                    evaluate(rank, weight)
                with perf.range("reduce"), perf.range("all_reduce", category="communication"):
                    torch.distributed.all_reduce(part)
    perf.finalize()
    counts = torch.tensor([float(evaluated), -float(evaluated)])
    torch.distributed.all_reduce(counts, torch.distributed.ReduceOp.MAX)
if rank == 1:
    print(int(counts.sum().item()), "examples more in one rank")
