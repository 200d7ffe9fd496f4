"""F6: each batch takes longer than the last: 2 to 14 ms."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("service")
for index in range(24):
    with perf.batch(index, total_items=1), perf.range("answer"):
        time.sleep(0.002 + 0.0005 * index)
perf.finalize()
