"""J: a parent with batches of 40 ms and two children with batches of 5 ms, under one name."""

import multiprocessing
import time

from perfharness import PerfRecorder


def work(batches: int, items: int, sleep_s: float) -> None:
    perf = PerfRecorder("app")
    for index in range(batches):
        with perf.batch(index, total_items=items):
            time.sleep(sleep_s)
    perf.finalize()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(20, 1, 0.005)) for _ in range(2)]
    for each in workers:
        each.start()
    work(8, 4, 0.040)
    for each in workers:
        each.join()
