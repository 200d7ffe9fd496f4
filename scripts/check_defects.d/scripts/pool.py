# ruff: noqa
"""DataLoader-like: fork workers with recorder; each worker's first batch is cold (30 ms), the rest 3 ms."""

import time, os, multiprocessing as mp, sys
from perfharness import PerfRecorder

perf = PerfRecorder("t")


def work(k):
    for i in range(6):
        with perf.batch(i, total_items=2):
            with perf.range("a"):
                time.sleep(0.030 if i == 0 else 0.003)


if __name__ == "__main__":
    mp.set_start_method(sys.argv[1])
    ps = [mp.Process(target=work, args=(k,)) for k in range(4)]
    [p.start() for p in ps]
    [p.join() for p in ps]
    perf.finalize()
