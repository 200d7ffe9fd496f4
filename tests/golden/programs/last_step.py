"""E: the step of a generator that ends it takes 15 ms; with it, stage `load` takes 25 ms a batch."""

import time
from collections.abc import Iterator

from perfharness import PerfRecorder

perf = PerfRecorder("loader")


@perf.annotate("load")
def load() -> Iterator[int]:
    for step in range(5):
        time.sleep(0.002)
        yield step
    time.sleep(0.015)


for index in range(8):
    with perf.batch(index, total_items=5):
        for _ in load():
            pass
perf.finalize()
