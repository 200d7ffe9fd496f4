"""Eight threads of other engines compete for two CPUs. Mended: they wait."""

import os
import threading
import zlib

from tests.faults.frame import MENDED, count, run

ENGINES = 4 * len(os.sched_getaffinity(0))
DATA = bytes(range(256)) * 2500
stop = threading.Event()


def engine():
    while not stop.is_set():
        if MENDED:
            stop.wait()
        else:
            zlib.crc32(zlib.compress(DATA, 1))
            count()


def infer(_):
    for _ in range(4):
        zlib.compress(DATA, 6)  # without the interpreter's lock, so only CPUs are short


threads = [threading.Thread(target=engine) for _ in range(ENGINES)]
for thread in threads:
    thread.start()
run(12, infer=infer, score=lambda _: zlib.crc32(DATA))
stop.set()
for thread in threads:
    thread.join()
