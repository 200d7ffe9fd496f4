"""Each batch gets a fresh cache of zeros, whose pages the kernel makes one by one as they are touched.

numpy/numpy#27483 (five times slower at the first access). Mended: one cache, cleared where it was written.
"""

from __future__ import annotations

import resource
import sys

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, PARTS, VALUES, STEP = 24, 96, 1 << 19, 512
kept = [np.zeros(VALUES, dtype=np.float32) for _ in range(PARTS)] if MENDED else []
for part in kept:
    part[:] = 0
perf = PerfRecorder("faults")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=PARTS):
            with perf.range("cache"):
                for part in kept:
                    part[::STEP] = index
                for part in [np.zeros(VALUES, dtype=np.float32) for _ in range(0 if MENDED else PARTS)]:  # fault
                    part[::STEP] = index
            with perf.range("infer"):
                sum(value * value for value in range(200_000))
after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
perf.finalize()
print(after - before, "page faults")
