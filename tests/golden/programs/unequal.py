"""F, with -np 2: both processes take 0.6 s, one with 60 batches of 10 ms, the other with 6 of 100 ms."""

import os
import time

from perfharness import PerfRecorder

batch_ms = 100 if os.environ["PERFHARNESS_PROCESS_INDEX"] == "1" else 10
perf = PerfRecorder("unequal")
with perf.range("pipeline"):
    for index in range(600 // batch_ms):
        with perf.batch(index, total_items=3):
            time.sleep(batch_ms / 1e3)
perf.finalize()
