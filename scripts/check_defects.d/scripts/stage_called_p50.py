import time

from perfharness import PerfRecorder

a = PerfRecorder("detector")
b = PerfRecorder("classifier")
for i in range(4):
    with a.batch(i, total_items=1):
        with a.range("pre"):
            time.sleep(0.002)
        with a.range("p50"):
            time.sleep(0.001)
with b.range("pipeline"):
    for i in range(4):
        with b.batch(i, total_items=1), b.range("pre"):
            time.sleep(0.010)
a.finalize()
b.finalize()
