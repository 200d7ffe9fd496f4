# ruff: noqa
"""Like forkrec.py, but each forked worker makes its own PerfRecorder; argv[1]: whether the parent made one before."""

import os, sys, time
from perfharness import PerfRecorder

if sys.argv[1] == "both":
    P = PerfRecorder("app")


def work():
    perf = PerfRecorder("app" if len(sys.argv) < 3 else f"w{os.getpid()}")
    with perf.range("pipeline"):
        for i in range(150):
            with perf.batch(i, total_items=1):
                time.sleep(0.02)
    perf.finalize()


pids = []
for k in range(2):
    pid = os.fork()
    if pid == 0:
        work()
        time.sleep(0.5)
        os._exit(0)
    pids.append(pid)
if sys.argv[1] == "both":
    with P.range("pipeline"):
        for i in range(10):
            with P.batch(i, total_items=1):
                time.sleep(0.02)
    P.finalize()
for p in pids:
    os.waitpid(p, 0)
