"""Three levels of batches: epoch > video > frame."""

import time

from perfharness import PerfRecorder

perf = PerfRecorder("t")
for e in range(3):
    with perf.batch(e, message="epoch"):
        for v in range(3):
            with perf.batch(v, message="video"):
                for f in range(4):
                    with perf.batch(f, total_items=1, message="frame"):
                        time.sleep(0.001)
perf.finalize()
