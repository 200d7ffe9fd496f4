"""Raises in the middle of batch 7 of 20."""

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
                    raise RuntimeError("no more")
                time.sleep(0.002)
