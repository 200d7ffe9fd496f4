"""The results of an engine are polled for with a sleep of 25 ms between two looks. Mended: a blocking get."""

import queue
import threading
import time

from tests.faults.frame import MENDED, batches, count, sorting, stage

requests, results = queue.Queue(), queue.Queue()
prepare = sorting(60000)


def engine():
    while (request := requests.get()) is not None:
        results.put(sum(range(request)))


def wait_for_result():
    if MENDED:
        return results.get()
    while results.empty():
        time.sleep(0.025)  # fault
        count()
    return results.get()


thread = threading.Thread(target=engine)
thread.start()
for index in batches(24):
    with stage("prepare"):
        prepare(index)
    requests.put(50_000)
    with stage("generate"):
        wait_for_result()
requests.put(None)
thread.join()
