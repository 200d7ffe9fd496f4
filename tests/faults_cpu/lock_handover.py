"""A batcher holds the lock of its queue while it waits for a free slot, so that whoever wants to enqueue waits too.

triton-inference-server/core#287. Mended: it waits without the lock.
"""

from __future__ import annotations

import sys
import threading
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SLOT_S = 24, 0.03
lock, stop, request = threading.Lock(), threading.Event(), threading.Semaphore(0)
taken: list[int] = []
waits_with_lock = 0


def wait_for_slot() -> None:
    time.sleep(SLOT_S)


def batcher() -> None:
    global waits_with_lock
    while request.acquire() and not stop.is_set():
        if MENDED:
            wait_for_slot()
            with lock:
                taken.clear()
        else:
            with lock:
                wait_for_slot()  # fault
                taken.clear()
            waits_with_lock += 1


def enqueue(index: int) -> None:
    with lock:  # fault
        taken.append(index)


perf = PerfRecorder("faults")
thread = threading.Thread(target=batcher)
thread.start()
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            request.release()
            with perf.range("prepare"):
                sorted(range(60000), key=lambda value: value % 1000)
            with perf.range("enqueue"):
                enqueue(index)
stop.set()
request.release()
thread.join()
perf.finalize()
print(waits_with_lock, "waits with the lock held")
