"""Five batches that do nothing, then an exception."""

from perfharness import PerfRecorder

perf = PerfRecorder("t")
for i in range(10):
    with perf.batch(i, total_items=1):
        if i == 5:
            raise ValueError("broken input")
