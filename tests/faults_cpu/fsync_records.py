"""A store of results calls fsync for every record of a batch.

SwanHubX/SwanLab#1664. Mended: it writes, and leaves to the system when that reaches the disk.
"""

from __future__ import annotations

import os
import sys
import tempfile

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, RECORDS = 20, 60
RECORD = b"x" * 120
syncs = 0


def write(file: int) -> None:
    global syncs
    os.write(file, RECORD)
    if not MENDED:
        os.fsync(file)  # fault
        syncs += 1


perf = PerfRecorder("faults")
with tempfile.NamedTemporaryFile() as results, perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=RECORDS):
            with perf.range("infer"):
                scores = sorted(range(10000), key=lambda value: value * 7919 % 10007)
            with perf.range("store"):
                for _ in range(RECORDS):
                    write(results.fileno())
perf.finalize()
print(syncs, "fsyncs")
