"""Loader thread makes a batch each 20 ms; queue of 12; consumer needs 2 ms. True steady rate: 50 batches/s/process."""

import os
import queue
import sys
import threading
import time

from perfharness import PerfRecorder

P = int(os.environ.get("PERFHARNESS_PROCESS_INDEX", "0"))
time.sleep(1.0 * P)  # the second process loads its model for a second longer
N = int(sys.argv[1]) if len(sys.argv) > 1 else 40
q = queue.Queue(maxsize=12)


def load():
    for i in range(N):
        time.sleep(0.02)
        q.put(i)
    q.put(None)


threading.Thread(target=load, daemon=True).start()
perf = PerfRecorder("t")
with perf.range("pipeline"):
    for _i, _x in perf.batches(iter(q.get, None), items=1):
        with perf.range("infer"):
            time.sleep(0.002)
perf.finalize()
