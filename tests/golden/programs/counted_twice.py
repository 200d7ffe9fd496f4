"""A: the process counts each item, and so do the two workers that it gives them to."""

import multiprocessing
import time
from typing import Any

from perfharness import PerfRecorder


def worker(questions: Any, answers: Any) -> None:
    perf = PerfRecorder("loader")
    index = 0
    while (item := questions.get()) is not None:
        with perf.batch(index, total_items=1, message="sample"):
            time.sleep(0.005)
        index += 1
        answers.put(item)
    perf.finalize()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    workers = [context.Process(target=worker, args=(questions, answers)) for _ in range(2)]
    for process in workers:
        process.start()
    time.sleep(1.0)
    perf = PerfRecorder("main")
    for index in range(12):
        with perf.batch(index, total_items=4):
            for item in range(4):
                questions.put(item)
            for _ in range(4):
                answers.get()
    for _process in workers:
        questions.put(None)
    for process in workers:
        process.join()
    perf.finalize()
