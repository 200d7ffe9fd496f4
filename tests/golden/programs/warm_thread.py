"""A, with -w 3: one thread has 30 batches of 4 ms, another 6 of 20 ms with 50 items each, which are all warm-up."""

import threading
import time

from perfharness import PerfRecorder

perf = PerfRecorder("threads")


def light() -> None:
    for index in range(30):
        with perf.batch(index, total_items=1):
            time.sleep(0.004)


def heavy() -> None:
    for index in range(6):
        with perf.batch(index, total_items=50):
            time.sleep(0.020)


threads = [threading.Thread(target=light), threading.Thread(target=heavy)]
for each in threads:
    each.start()
for each in threads:
    each.join()
perf.finalize()
