"""mean_data / stats of a stage lost: a batch and a stage of one name under one parent."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("toy")
with perf.range("pipeline"):
    for i in range(6):
        with perf.batch(i, total_items=1):
            with perf.range("tile"):
                time.sleep(0.020)  # a plain stage called tile
            for t in range(2):
                with perf.batch(t, total_items=1, message="tile"):
                    time.sleep(0.001)  # batches called tile
            with perf.range("tile_0"):
                time.sleep(0.010)
perf.finalize()
