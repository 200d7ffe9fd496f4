import time

from perfharness import PerfRecorder

a = PerfRecorder("detector")
b = PerfRecorder("classifier")
for r, s in ((a, 0.002), (b, 0.010)):
    with r.range("pipeline"):
        for i in range(4):
            with r.batch(i, total_items=1), r.range("pre"):
                time.sleep(s)
a.finalize()
b.finalize()
