"""4 threads, each with its own loop; each thread's first batch is cold (50 ms), the rest 5 ms."""

import threading
import time

from perfharness import PerfRecorder

perf = PerfRecorder("t")


def w(k):
    for i in range(6):
        with perf.batch(i, total_items=1):
            time.sleep(0.05 if i == 0 else 0.005)


ts = [threading.Thread(target=w, args=(k,)) for k in range(4)]
[t.start() for t in ts]
[t.join() for t in ts]
perf.finalize()
