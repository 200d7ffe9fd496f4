"""F3: infer takes 4 ms in each of 30 batches, flush 20 ms in every tenth; the batch takes 6 ms."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("service")
for index in range(30):
    with perf.batch(index, total_items=1):
        with perf.range("infer"):
            time.sleep(0.004)
        if index % 10 == 5:
            with perf.range("flush"):
                time.sleep(0.020)
perf.finalize()
