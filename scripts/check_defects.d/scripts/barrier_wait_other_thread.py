import os
import threading
import time

from perfharness import PerfRecorder

P = int(os.environ.get("PERFHARNESS_PROCESS_INDEX", "0"))
time.sleep(1.5 * P)
perf = PerfRecorder("t")


def w(k):
    with perf.range("worker"):
        for i in range(6):
            with perf.batch(i, total_items=1):
                time.sleep(0.01)


with perf.range("pipeline"):
    ts = [threading.Thread(target=w, args=(k,)) for k in range(2)]
    [t.start() for t in ts]
    [t.join() for t in ts]
perf.finalize()
