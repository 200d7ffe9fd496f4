# ruff: noqa
import sys, time
from perfharness import PerfRecorder

kind, n = sys.argv[1], int(sys.argv[2])
perf = PerfRecorder("rec")
if kind == "deep":  # n ranges nested, different names
    for i in range(n):
        perf.push_range(f"r{i}")
    for i in range(n):
        perf.pop_range()
elif kind == "deepsame":
    for i in range(n):
        perf.push_range("r")
    for i in range(n):
        perf.pop_range()
elif kind == "deepbatch":
    for b in range(3):
        perf.push_range("batch", batch_idx=b)
        for i in range(n):
            perf.push_range(f"r{i}")
        for i in range(n):
            perf.pop_range()
        perf.pop_range(total_items=1)
elif kind == "distinct":
    with perf.range("p"):
        for b in range(4):
            with perf.batch(b, total_items=1):
                for i in range(n):
                    with perf.range(f"name{i}"):
                        pass
elif kind == "long":
    with perf.range("p"):
        for b in range(4):
            with perf.batch(b, total_items=1):
                for i in range(3):
                    with perf.range(chr(65 + i) * n):
                        pass
elif kind == "batches":
    with perf.range("p"):
        for b in range(n):
            with perf.batch(b, total_items=1):
                with perf.range("s"):
                    pass
elif kind == "batchids":
    with perf.range("p"):
        for b in [2**62, 2**63 - 1, -5, 0, 0, 10**9]:
            try:
                with perf.batch(b, total_items=1):
                    with perf.range("s"):
                        pass
            except Exception as e:
                print(b, e)
perf.finalize()
