"""Stages of known arithmetic and bytes, of varying length: what the GPU's counters are checked with.

perfharness launch tests/gpu/counters_pipeline.py [--seconds SECONDS]

Each stage repeats one operation; how often is written to counters_work.json beside the results, by batch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch

from perfharness import PerfRecorder

BF16, FP32 = 8192, 6144
ELEMENTS = 1 << 29
STEPS = {"bf16_product": (20, 60), "fp32_product": (3, 9), "copy": (15, 45), "elementwise": (15, 45)}
"""Fewest and most operations of each stage in a batch."""


def stages() -> dict[str, Callable[[], object]]:
    """One operation of each stage."""
    torch.backends.cuda.matmul.allow_tf32 = False
    half = torch.randn(BF16, BF16, device="cuda", dtype=torch.bfloat16)
    single = torch.randn(FP32, FP32, device="cuda")
    half_out, single_out = torch.empty_like(half), torch.empty_like(single)
    column = torch.rand(ELEMENTS, device="cuda")
    other = torch.empty_like(column)
    return {
        "bf16_product": lambda: torch.mm(half, half, out=half_out),
        "fp32_product": lambda: torch.mm(single, single, out=single_out),
        "copy": lambda: other.copy_(column),
        "elementwise": lambda: torch.add(column, 1.0, out=other),
    }


WORK = {
    "bf16_product": {"flop": 2.0 * BF16**3, "bytes": 0.0},
    "fp32_product": {"flop": 2.0 * FP32**3, "bytes": 0.0},
    "copy": {"flop": 0.0, "bytes": 2.0 * 4 * ELEMENTS},
    "elementwise": {"flop": 0.0, "bytes": 2.0 * 4 * ELEMENTS},
}
"""Of one operation; bytes of products are left out, for caches decide them."""


def main() -> None:
    """Run batches for about the time asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6.0)
    end_after = parser.parse_args().seconds
    chance, operations = random.Random(5), stages()
    for operation in operations.values():
        for _ in range(5):
            operation()
    torch.cuda.synchronize()
    perf, counts, end, index = PerfRecorder("counters"), [], time.perf_counter() + end_after, 0
    with perf.range("pipeline"):
        while time.perf_counter() < end:
            steps = {name: chance.randint(*STEPS[name]) for name in operations}
            with perf.batch(index, total_items=1):
                for name, operation in operations.items():
                    with perf.range(name):
                        for _ in range(steps[name]):
                            operation()
                        torch.cuda.synchronize()
                time.sleep(chance.uniform(0.0, 0.05))
            counts.append(steps)
            index += 1
    perf.finalize()
    folder = Path(os.environ.get("PERFHARNESS_OUTPUT_DIR", "."))
    (folder / "counters_work.json").write_text(json.dumps({"steps": counts, "work": WORK}))


if __name__ == "__main__":
    main()
