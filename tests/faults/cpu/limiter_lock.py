"""A rate limiter sleeps for a slow tenant with the lock of all tenants in its hand. Mended: without the lock."""

import threading
import time

import numpy as np

from tests.faults.frame import MENDED, batches, count, stage

REQUESTS = 3
WEIGHTS = np.random.default_rng(5).normal(0, 0.1, (192, 192)).astype(np.float32)
INTERVALS_S = {"search": 0.0, "reindex": 0.02}
next_s = dict.fromkeys(INTERVALS_S, 0.0)
lock = threading.RLock()
stopping = threading.Event()


def acquire(tenant):
    if MENDED:
        with lock:
            delay_s = take(tenant)
        time.sleep(delay_s)
    else:
        acquire_and_sleep(tenant)


def acquire_and_sleep(tenant):
    with lock:  # fault
        delay_s = take(tenant)
        if delay_s > 0:
            count()
            time.sleep(delay_s)


def take(tenant):
    now_s = time.monotonic()
    turn_s = max(now_s, next_s[tenant])
    next_s[tenant] = turn_s + INTERVALS_S[tenant]
    return turn_s - now_s


def reindex():
    while not stopping.is_set():
        acquire("reindex")
        time.sleep(0.002)  # a request to the index


def call_model(query):
    acquire("search")
    for _ in range(30):
        query = np.tanh(query @ WEIGHTS)
    return query


def tokenize(number):
    words = [f"{number}-{position}"[::-1] for position in range(3000)]
    return np.resize(np.array([len(word) for word in words], np.float32), (8, 192))


def rerank(answers):
    scores = [float(row.sum()) for answer in answers for row in answer]
    for _ in range(150):
        scores = sorted(scores, key=lambda score: -abs(score - 0.5))


def pipeline():
    for index in batches(60, REQUESTS):
        with stage("tokenize"):
            queries = [tokenize(index + request) for request in range(REQUESTS)]
        with stage("answer"):
            answers = []
            for query in queries:
                with stage("call"):
                    answers.append(call_model(query))
        with stage("rerank"):
            rerank(answers)


threads = [threading.Thread(target=work, name=work.__name__) for work in (reindex, pipeline)]
for thread in threads:
    thread.start()
threads[1].join()
stopping.set()
threads[0].join()
