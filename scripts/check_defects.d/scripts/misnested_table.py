import time

from perfharness import PerfRecorder

a = PerfRecorder("app")
for i in range(4):
    with a.batch(i, total_items=1, message="detect"):
        time.sleep(0.002)
with a.range("classifier"):
    for i in range(4):
        with a.batch(i, total_items=1, message="classify"):
            time.sleep(0.010)
a.finalize()
