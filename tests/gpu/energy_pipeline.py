"""Stages of known different load, of varying length, each for some seconds in all: what energy is checked with.

perfharness launch tests/gpu/energy_pipeline.py [--alone] [--seconds SECONDS]

Lengths vary at random (with a fixed seed), so that no stage is in step with a sensor and none goes with another. With
--alone every batch is one stage only, long enough for the energy counter to measure it by itself.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import torch

from perfharness import PerfRecorder

DEVICE = "cuda"
MATRIX = 8192
ELEMENTS = 1 << 28
SMALL = 1 << 14
ALONE_BATCH_S = 2.6
STAGE_S = {"matmul": (0.25, 0.6), "elementwise": (0.25, 0.6), "small_kernels": (0.15, 0.35), "sleep": (0.15, 0.4)}
"""Shortest and longest time of each stage in a batch."""

ALONE_STAGES = ("matmul", "elementwise")

Work = Callable[[float], None]


def for_seconds(step: Callable[[], object], steps_at_once: int) -> Work:
    """Repeat a step until the time is over; the GPU is waited for every few steps, so that little is left behind."""

    def work(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(steps_at_once):
                step()
            torch.cuda.synchronize()

    return work


def stages() -> dict[str, Work]:
    """The stages by name; the GPU computes in all but one."""
    matrix = torch.randn(MATRIX, MATRIX, device=DEVICE, dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    column = torch.rand(ELEMENTS, device=DEVICE)
    other = torch.empty_like(column)
    small = torch.rand(SMALL, device=DEVICE)
    return {
        "matmul": for_seconds(lambda: torch.mm(matrix, matrix, out=product), 8),
        "elementwise": for_seconds(lambda: torch.add(column, 1.0, out=other), 16),
        "small_kernels": for_seconds(small.sin_, 100),
        "sleep": time.sleep,
    }


def main() -> None:
    """Run batches for about the time asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true", help="one stage a batch")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    chance = random.Random(5)
    work = stages()
    for name in ALONE_STAGES:
        work[name](0.3)  # libraries are loaded and clocks raised before the first batch
    perf = PerfRecorder("energy")
    end = time.perf_counter() + arguments.seconds
    index = 0
    with perf.range("pipeline"):
        while time.perf_counter() < end:
            names = [ALONE_STAGES[index % len(ALONE_STAGES)]] if arguments.alone else list(STAGE_S)
            with perf.batch(index, total_items=1):
                for name in names:
                    seconds = ALONE_BATCH_S if arguments.alone else chance.uniform(*STAGE_S[name])
                    with perf.range(name):
                        work[name](seconds)
            index += 1
    perf.finalize()


if __name__ == "__main__":
    main()
