"""A batch of three items: a stage that sleeps and a stage that computes."""

import sys
import time

from perfharness import PerfRecorder

sleep_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.003
perf = PerfRecorder("video")
with perf.range("pipeline"):
    for index in range(12):
        with perf.batch(index, total_items=3):
            with perf.range("decode"):
                time.sleep(sleep_s)
            with perf.range("infer"):
                sum(range(50_000))
perf.finalize()
