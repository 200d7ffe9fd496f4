# ruff: noqa
"""PerfRecorder made before the fork; 2 forked workers do 150 batches each."""

import os, time
from perfharness import PerfRecorder

perf = PerfRecorder("app")


def work():
    with perf.range("pipeline"):
        for i in range(150):
            with perf.batch(i, total_items=1):
                time.sleep(0.02)


pids = []
for k in range(2):
    pid = os.fork()
    if pid == 0:
        work()
        time.sleep(0.5)
        os._exit(0)
    pids.append(pid)
with perf.range("pipeline"):
    for i in range(10):
        with perf.batch(i, total_items=1):
            time.sleep(0.02)
for p in pids:
    os.waitpid(p, 0)
perf.finalize()
