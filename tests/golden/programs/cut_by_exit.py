"""C: the process ends by os._exit(0) in the middle of batch 7 of 20, after a long wait in it."""

import os
import time

from perfharness import PerfRecorder

perf = PerfRecorder("video")
with perf.range("pipeline"):
    for index in range(20):
        with perf.batch(index, total_items=2):
            with perf.range("decode"):
                time.sleep(0.004)
            with perf.range("infer"):
                if index == 7:
                    time.sleep(0.1)
                    os._exit(0)
                time.sleep(0.002)
