# ruff: noqa
"""Parent loop + 3 forked workers that do the decoding, same recorder: the workers' ranges."""

import time, os, multiprocessing as mp, sys
from perfharness import PerfRecorder

perf = PerfRecorder("t")


def work(q, r):
    while (i := q.get()) is not None:
        with perf.range("decode"):
            time.sleep(0.010)
        r.put(i)


if __name__ == "__main__":
    mp.set_start_method("fork")
    q, r = mp.Queue(), mp.Queue()
    ps = [mp.Process(target=work, args=(q, r)) for k in range(3)]
    [p.start() for p in ps]
    for i in range(12):
        q.put(i)
    with perf.range("pipeline"):
        for i in range(12):
            with perf.batch(i, total_items=1):
                with perf.range("wait"):
                    r.get()
    for p in ps:
        q.put(None)
    [p.join() for p in ps]
    perf.finalize()
