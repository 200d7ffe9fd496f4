"""The pipeline runs twice, with 2 s of other work between. 20 ms a batch: 50 items/s."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("t")


def pipeline(n):
    with perf.range("pipeline"):
        for i in range(n):
            with perf.batch(i, total_items=1):
                time.sleep(0.02)


pipeline(5)
time.sleep(2)
pipeline(20)
perf.finalize()
