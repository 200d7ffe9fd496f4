"""Stages of known different load, long enough for the energy counter of an H100 or H200 (100 ms)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch

from perfharness import PerfRecorder

BATCHES = 8


def for_seconds(step: Callable[[], object], seconds: float) -> None:
    """Repeat a step; the GPU is waited for every few steps, so that little is left behind."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(8):
            step()
        torch.cuda.synchronize()


def main() -> None:
    """Run batches of about three seconds."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    column = torch.rand(1 << 28, device="cuda")
    other = torch.empty_like(column)
    chance = random.Random(5)
    work = {
        "matmul": lambda: torch.mm(matrix, matrix, out=product),
        "elementwise": lambda: torch.add(column, 1.0, out=other),
    }
    for step in work.values():
        for_seconds(step, 0.3)  # libraries are loaded and clocks raised before the first batch
    perf = PerfRecorder("energy")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                for name, step in work.items():
                    with perf.range(name):
                        for_seconds(step, chance.uniform(1.2, 1.6))
                with perf.range("sleep"):
                    time.sleep(chance.uniform(0.3, 0.5))
    perf.finalize()


if __name__ == "__main__":
    main()
