"""A thread asks a scheduler without a pause whether a job is due. Mended: it sleeps between."""

import threading
import time

from tests.faults.frame import MENDED, count, run

stopping = threading.Event()


class Scheduler:
    def __init__(self):
        self.due_s = {name: time.monotonic() + 3600.0 for name in ("health", "metrics", "cleanup")}

    def run_pending(self):
        now_s = time.monotonic()
        return sum(1 for due_s in sorted(self.due_s.values()) if due_s <= now_s)


def keep_house(scheduler):
    while not stopping.is_set():  # fault
        scheduler.run_pending()  # fault
        count()
        if MENDED:
            stopping.wait(1.0)


def tokenize(index):
    return [sum(map(ord, f"{index}:{position}")) % 5000 for position in range(7000)]


def score(tokens):
    return sorted(range(len(tokens)), key=lambda position: tokens[position] * 7919 % 10007)


def respond(order):
    return ",".join(map(str, order[:3000]))


thread = threading.Thread(target=keep_house, args=(Scheduler(),), name="scheduler")
thread.start()
run(30, tokenize=tokenize, score=score, respond=respond)
stopping.set()
thread.join()
