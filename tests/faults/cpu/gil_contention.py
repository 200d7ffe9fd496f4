"""A thread works in pure Python while the main one needs the interpreter lock. Mended: it waits."""

import threading
import zlib

from tests.faults.frame import MENDED, count, run

STEPS = 16
TENSOR = bytes(1 << 20)
stop, news = threading.Event(), threading.Event()


def summarize(results):
    total = 0
    for value in results:  # fault
        total += value * value % 7
    return total


def collect():
    results = list(range(2000))
    while not stop.is_set():
        if MENDED:
            news.wait()
            news.clear()
        summarize(results)
        count()


def infer(_):
    for _ in range(STEPS):
        zlib.crc32(TENSOR)  # gives the lock away in here, and has to get it back


thread = threading.Thread(target=collect)
news.set()
thread.start()
run(20, STEPS, infer=infer, tally=lambda _: sorted(range(30000), key=lambda value: value % 1000))
stop.set()
news.set()
thread.join()
