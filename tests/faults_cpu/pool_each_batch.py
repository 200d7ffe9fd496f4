"""A pool of workers is made and ended for every batch.

springfall2008/batpred#4546 (1507 of 2409 ms were the creation of threads). Mended: one pool for all batches.
"""

from __future__ import annotations

import multiprocessing
import sys

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, WORKERS, ITEMS = 16, 6, 6
context = multiprocessing.get_context("fork")
pools = 0


def crop(value: int) -> int:
    return sum(range(value))


def augment() -> list[int]:
    global pools
    pools += 1
    with context.Pool(WORKERS) as pool:  # fault
        return pool.map(crop, [2000] * ITEMS)


if __name__ == "__main__":
    perf = PerfRecorder("faults")
    kept = context.Pool(2) if MENDED else None
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=ITEMS):
                with perf.range("augment"):
                    kept.map(crop, [2000] * ITEMS) if kept is not None else augment()
                with perf.range("infer"):
                    sorted(range(60000), key=lambda value: value * 7919 % 10007)
    if kept is not None:
        kept.terminate()
    perf.finalize()
    print(pools, "pools")
