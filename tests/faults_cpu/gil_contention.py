"""A thread of the same process takes results apart in pure Python all the time; the main thread waits for the lock of
the interpreter between its short operations.

pytorch/pytorch#77139 (the pinning thread of a data loader freezes the training thread). Mended: the thread waits until
there is something new, which there is once.
"""

from __future__ import annotations

import sys
import threading
import zlib

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, STEPS = 20, 16
TENSOR = bytes(1 << 20)
stop, news = threading.Event(), threading.Event()
rounds = 0


def summarize(results: list[int]) -> int:
    total = 0
    for value in results:  # fault
        total += value * value % 7
    return total


def collect() -> None:
    global rounds
    results = list(range(2000))
    while not stop.is_set():
        if MENDED:
            news.wait()
            news.clear()
        summarize(results)
        rounds += 1


perf = PerfRecorder("faults")
thread = threading.Thread(target=collect)
news.set()
thread.start()
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=STEPS):
            with perf.range("infer"):
                for _ in range(STEPS):
                    zlib.crc32(TENSOR)  # gives the lock away in here, and has to get it back
            with perf.range("tally"):
                sorted(range(30000), key=lambda value: value % 1000)
stop.set()
news.set()
thread.join()
perf.finalize()
print(rounds, "rounds of the thread")
