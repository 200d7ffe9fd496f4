"""I: the process replaces itself by os.execv: 6 batches of 5 ms before, 6 of 10 ms after."""

import os
import sys
import time

from perfharness import PerfRecorder

second = len(sys.argv) > 1
perf = PerfRecorder("half_2" if second else "half_1")
for index in range(6):
    with perf.batch(index, total_items=1):
        time.sleep(0.010 if second else 0.005)
perf.finalize()
if not second:
    os.execv(sys.executable, [sys.executable, __file__, "second"])
