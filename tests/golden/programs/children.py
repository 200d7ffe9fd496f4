"""A process with batches and two children with batches: one spawned, one forked."""

import multiprocessing
import time

from perfharness import PerfRecorder


def work(name: str, sleep_s: float) -> None:
    perf = PerfRecorder(name)
    for index in range(8):
        with perf.batch(index, total_items=1), perf.range("load"):
            time.sleep(sleep_s)
    perf.finalize()


if __name__ == "__main__":
    children = [
        multiprocessing.get_context("spawn").Process(target=work, args=("spawned", 0.004)),
        multiprocessing.get_context("fork").Process(target=work, args=("forked", 0.006)),
    ]
    for child in children:
        child.start()
    work("main", 0.010)
    for child in children:
        child.join()
