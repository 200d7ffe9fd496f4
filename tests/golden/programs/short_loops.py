"""A: twelve passes of three frames of 3, 3 and 9 ms; the true mean is 5 ms, the true rate 200 items/s."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("video")
with perf.range("pipeline"):
    for _ in range(12):
        for frame in range(3):
            with perf.batch(frame, total_items=1, message="frame"):
                time.sleep(0.003 if frame < 2 else 0.009)
perf.finalize()
