"""Two tenants share a rate limiter, which sleeps until the slow one may go on with the lock of all of them in its hand.

vutran1710/PyrateLimiter#301, datahub-project/datahub#17685. Mended: what a tenant has to wait is known under the lock
and slept through without it. The pipeline runs on a thread that is not the main one.
"""

from __future__ import annotations

import os
import sys
import threading
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS, REFILL_S = 60, 3, 0.02
slept_with_lock = 0


class Limiter:
    """One bucket of tokens a tenant."""

    def __init__(self, rates_s: dict[str, float]) -> None:
        self.lock = threading.RLock()
        self.rates_s = rates_s
        self.next_s = dict.fromkeys(rates_s, 0.0)

    def acquire(self, tenant: str) -> None:
        if MENDED:
            self.acquire_then_sleep(tenant)
        else:
            self.acquire_and_sleep(tenant)

    def acquire_and_sleep(self, tenant: str) -> None:
        global slept_with_lock
        with self.lock:  # fault
            delay_s = self._take(tenant)
            if delay_s > 0:
                slept_with_lock += 1
                time.sleep(delay_s)

    def acquire_then_sleep(self, tenant: str) -> None:
        with self.lock:
            delay_s = self._take(tenant)
        if delay_s > 0:
            time.sleep(delay_s)

    def _take(self, tenant: str) -> float:
        now_s = time.monotonic()
        turn_s = max(now_s, self.next_s[tenant])
        self.next_s[tenant] = turn_s + self.rates_s[tenant]
        return turn_s - now_s


limiter = Limiter({"search": 0.0, "reindex": REFILL_S})
stopping = threading.Event()


def reindex() -> None:
    while not stopping.is_set():
        limiter.acquire("reindex")
        time.sleep(0.002)  # a request to the index


def call_model(query: np.ndarray) -> np.ndarray:
    limiter.acquire("search")
    for _ in range(30):
        query = np.tanh(query @ WEIGHTS)
    return query


def tokenize(number: int) -> np.ndarray:
    words = [f"{number}-{position}"[::-1] for position in range(3000)]
    return np.resize(np.array([len(word) for word in words], np.float32), (8, 192))


def rerank(answers: list[np.ndarray]) -> list[int]:
    scores = [float(row.sum()) for answer in answers for row in answer]
    for _ in range(150):
        scores = sorted(scores, key=lambda score: -abs(score - 0.5))
    return [round(score) for score in scores]


def pipeline() -> None:
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=REQUESTS):
                with perf.range("tokenize"):
                    queries = [tokenize(index + request) for request in range(REQUESTS)]
                with perf.range("answer"):
                    answers = []
                    for query in queries:
                        with perf.range("call"):
                            answers.append(call_model(query))
                with perf.range("rerank"):
                    rerank(answers)
    perf.finalize()


WEIGHTS = np.random.default_rng(5).normal(0, 0.1, (192, 192)).astype(np.float32)
threads = [threading.Thread(target=work, name=work.__name__) for work in (reindex, pipeline)]
for thread in threads:
    thread.start()
threads[1].join()
stopping.set()
threads[0].join()
print(slept_with_lock, "sleeps with the lock")
