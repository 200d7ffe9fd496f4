"""D: nvtx.annotate inside batches of a recorder: decode has 4 ms and library_step 3 of 8 ms."""

import time

import nvtx

from perfharness import PerfRecorder


def decode() -> None:
    with nvtx.annotate("decode"):
        time.sleep(0.004)


def library_step() -> None:
    with nvtx.annotate("library_step", domain="library"):
        time.sleep(0.003)


perf = PerfRecorder("mixed")
with perf.range("pipeline"):
    for index in range(12):
        with perf.batch(index, total_items=1):
            decode()
            library_step()
            with perf.range("infer"):
                time.sleep(0.001)
perf.finalize()
