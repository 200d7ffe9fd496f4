"""A batcher of 8 has two clients, so every batch waits until its window closes. Mended: no batcher."""

import queue
import threading
import time
from concurrent.futures import Future

import numpy as np

from tests.faults.frame import MENDED, count, run

CLIENTS, MAX_BATCH, WINDOW_S = 2, 8, 0.045
WEIGHTS = np.random.default_rng(13).normal(0, 0.1, (256, 256)).astype(np.float32)
requests = queue.Queue()


def forward(rows):
    states = np.stack(rows)
    for _ in range(10):
        states = np.tanh(states @ WEIGHTS)
    return list(states)


def collect():
    batch, closes = [requests.get()], time.monotonic() + WINDOW_S
    while batch != [None] and len(batch) < MAX_BATCH:
        try:
            batch.append(requests.get(timeout=max(0.0, closes - time.monotonic())))  # fault
        except queue.Empty:
            count()
            break
    return batch


def work():
    while (batch := collect()) != [None]:
        for (_, future), answer in zip(batch, forward([row for row, _ in batch]), strict=True):
            future.set_result(answer)


def featurize(index):
    return [featurize_one(index + client) for client in range(CLIENTS)]


def featurize_one(number):
    words = [f"w{number * position % 613}" for position in range(24000)]
    return np.resize(np.array([len(word) for word in words], np.float32), 256)


def predict(rows):
    if MENDED:
        return forward(rows)
    futures = [Future() for _ in rows]
    for row, future in zip(rows, futures, strict=True):
        requests.put((row, future))
    return [future.result() for future in futures]  # fault


def explain(answers):
    return [sorted(range(256), key=(-row).__getitem__)[:9] for row in answers for _ in range(60)]


thread = threading.Thread(target=work, name="batcher")
thread.start()
run(60, CLIENTS, featurize=featurize, predict=predict, explain=explain)
requests.put(None)
thread.join()
