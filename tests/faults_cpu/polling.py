"""The results of an engine are polled for with a sleep of 25 ms between two looks, although they are there much sooner.

eth-sri/lmql#127, vllm-project/vllm#14585. Mended: a blocking get.
"""

from __future__ import annotations

import queue
import sys
import threading
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, POLL_S = 24, 0.025
requests: queue.Queue[int | None] = queue.Queue()
results: queue.Queue[int] = queue.Queue()
sleeps = 0


def engine() -> None:
    while (request := requests.get()) is not None:
        results.put(sum(range(request)))


def wait_for_result() -> int:
    global sleeps
    if MENDED:
        return results.get()
    while results.empty():
        time.sleep(POLL_S)  # fault
        sleeps += 1
    return results.get()


perf = PerfRecorder("faults")
thread = threading.Thread(target=engine)
thread.start()
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("prepare"):
                sorted(range(60000), key=lambda value: value * 7919 % 10007)
            requests.put(50_000)
            with perf.range("generate"):
                wait_for_result()
requests.put(None)
thread.join()
perf.finalize()
print(sleeps, "sleeps")
