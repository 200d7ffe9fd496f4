"""A thread asks a scheduler in an endless loop whether a job is due, without a pause, and takes the interpreter's lock.

dbader/schedule#156, redis/redis-py#3994. Mended: it sleeps until the next job is due.
"""

from __future__ import annotations

import sys
import threading
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 30
stopping = threading.Event()
turns = 0


class Scheduler:
    def __init__(self) -> None:
        self.due_s = {name: time.monotonic() + 3600.0 for name in ("health", "metrics", "cleanup")}

    def run_pending(self) -> int:
        now_s = time.monotonic()
        return sum(1 for due_s in sorted(self.due_s.values()) if due_s <= now_s)


def keep_house(scheduler: Scheduler) -> None:
    global turns
    while not stopping.is_set():  # fault
        scheduler.run_pending()  # fault
        turns += 1
        if MENDED:
            stopping.wait(1.0)


def tokenize(index: int) -> list[int]:
    return [sum(map(ord, f"{index}:{position}")) % 5000 for position in range(7000)]


def score(tokens: list[int]) -> list[int]:
    return sorted(range(len(tokens)), key=lambda position: tokens[position] * 7919 % 10007)


def respond(order: list[int]) -> str:
    return ",".join(map(str, order[:3000]))


thread = threading.Thread(target=keep_house, args=(Scheduler(),), name="scheduler")
thread.start()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("tokenize"):
                tokens = tokenize(index)
            with perf.range("score"):
                order = score(tokens)
            with perf.range("respond"):
                respond(order)
perf.finalize()
stopping.set()
thread.join()
print(turns, "turns of the scheduler")
