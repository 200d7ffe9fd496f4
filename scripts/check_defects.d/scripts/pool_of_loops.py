"""Workers of a pool, each with a loop of its own; its first batch is cold (30 ms), the others take 3 ms."""

import multiprocessing
import sys
import time

from perfharness import PerfRecorder

perf = PerfRecorder("t")


def work(_number):
    for i in range(6):
        with perf.batch(i, total_items=2):
            time.sleep(0.030 if i == 0 else 0.003)
    perf.finalize()


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    workers = [multiprocessing.Process(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    perf.finalize()
