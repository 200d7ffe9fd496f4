# ruff: noqa
import os, sys, time
from perfharness import PerfRecorder

perf = PerfRecorder("rec")
name = os.fsdecode(b"caf\xe9.jpg")
with perf.range("pipeline"):
    for i in range(6):
        with perf.batch(i, total_items=2):
            with perf.range(name if i == 3 else "ok"):
                time.sleep(0.001)
perf.finalize()
print("end")
