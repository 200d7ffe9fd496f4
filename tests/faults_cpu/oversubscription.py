"""Eight engines in a process, each with threads of its own, on two CPUs: whoever wants to run waits for its turn.

microsoft/onnxruntime#3099, pytorch/pytorch#82219. Mended: the engines that have nothing to do wait.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ENGINES = 12, 4 * len(os.sched_getaffinity(0))
DATA = bytes(range(256)) * 2500
stop = threading.Event()
computed = 0


def engine() -> None:
    global computed
    while not stop.is_set():
        if MENDED:
            stop.wait()
        else:
            zlib.crc32(zlib.compress(DATA, 1))
            computed += 1


perf = PerfRecorder("faults")
threads = [threading.Thread(target=engine) for _ in range(ENGINES)]
for thread in threads:
    thread.start()
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("infer"):
                for _ in range(4):
                    zlib.compress(DATA, 6)  # without the interpreter's lock, so only CPUs are short
            with perf.range("score"):
                zlib.crc32(DATA)
stop.set()
for thread in threads:
    thread.join()
perf.finalize()
print(computed, "computations of other engines")
