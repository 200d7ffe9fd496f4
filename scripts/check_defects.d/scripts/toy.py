"""A pipeline of a few batches, with a stage each."""

import sys
import time

from perfharness import PerfRecorder

perf = PerfRecorder("toy")
with perf.range("pipeline"):
    for index in range(int(sys.argv[1]) if len(sys.argv) > 1 else 6):
        with perf.batch(index, total_items=2), perf.range("infer"):
            time.sleep(0.002)
perf.finalize()
