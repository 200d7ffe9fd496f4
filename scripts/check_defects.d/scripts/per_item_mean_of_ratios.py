import time

from perfharness import PerfRecorder

perf = PerfRecorder("t")
with perf.range("pipeline"):
    for i in range(42):
        n = 64 if i % 2 else 1
        with perf.batch(i, total_items=n):
            time.sleep(0.010)
perf.finalize()
