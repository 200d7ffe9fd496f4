"""A server keeps many long-lived objects, and every full run of the garbage collector goes through all of them.

sgl-project/sglang#30596 (400 ms a run). Mended: they are frozen after the start, and nothing is collected in
batches.
"""

from __future__ import annotations

import collections
import gc
import sys

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, KEPT, REQUESTS, PIECES = 24, 260_000, 90, 900
CACHE = [{"id": i} for i in range(KEPT)]
WINDOW: collections.deque[list[tuple[int, list[int]]]] = collections.deque(maxlen=300)


def parse(request: int) -> list[tuple[int, list[int]]]:
    return [(request, [piece]) for piece in range(PIECES)]  # fault


perf = PerfRecorder("faults")
gc.collect()
if MENDED:
    gc.freeze()
    gc.disable()
before = gc.get_stats()[2]["collections"]
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=REQUESTS):
            with perf.range("parse"):
                for request in range(REQUESTS):
                    WINDOW.append(parse(request))
            with perf.range("infer"):
                sum(value * value for value in range(200_000))
after = gc.get_stats()[2]["collections"]
perf.finalize()
print(after - before, "full collections")
