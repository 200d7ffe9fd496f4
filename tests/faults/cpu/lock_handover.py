"""A batcher waits for a free slot with the lock of its queue, which others want. Mended: without the lock."""

import threading
import time

from tests.faults.frame import MENDED, batches, count, stage

lock, stop, request = threading.Lock(), threading.Event(), threading.Semaphore(0)
taken = []


def wait_for_slot():
    time.sleep(0.03)


def batcher():
    while request.acquire() and not stop.is_set():
        if MENDED:
            wait_for_slot()
            with lock:
                taken.clear()
        else:
            with lock:
                wait_for_slot()  # fault
                taken.clear()
            count()


def enqueue(index):
    with lock:  # fault
        taken.append(index)


thread = threading.Thread(target=batcher)
thread.start()
for index in batches(24):
    request.release()
    with stage("prepare"):
        sorted(range(60000), key=lambda value: value % 1000)
    with stage("enqueue"):
        enqueue(index)
stop.set()
request.release()
thread.join()
