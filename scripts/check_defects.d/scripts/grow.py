# ruff: noqa
import resource, time, sys, os, gc
from perfharness import PerfRecorder

perf = PerfRecorder("r")


def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


perf.push_range("p")
b0 = rss()
n = int(sys.argv[1])
last = b0
for k in range(5):
    for i in range(n):
        perf.push_range("batch", batch_idx=k * n + i)
        perf.push_range("s")
        perf.pop_range()
        perf.pop_range(total_items=1)
    r = rss()
    print(k, "bytes per range", (r - last) / (2 * n), "total", r >> 20, "MiB", flush=True)
    last = r
perf.pop_range()
perf.finalize()
