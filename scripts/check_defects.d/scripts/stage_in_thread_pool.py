import time
from concurrent.futures import ThreadPoolExecutor

from perfharness import PerfRecorder

perf = PerfRecorder("t")


@perf.annotate("decode")
def decode(x):
    time.sleep(0.004)


with ThreadPoolExecutor(4) as pool, perf.range("pipeline"):
    for i in range(10):
        with perf.batch(i, total_items=8):
            list(pool.map(decode, range(8)))
            with perf.range("infer"):
                time.sleep(0.002)
perf.finalize()
