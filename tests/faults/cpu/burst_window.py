"""A thread fetches four batches by one call and hands out none before all are there. Mended: eight threads."""

import queue
import threading
import time

import numpy as np

from tests.faults.frame import MENDED, count, network, run

BATCHES, WINDOW = 80, 4
ready = queue.Queue(2 * WINDOW)
numbers = queue.Queue()


def get_batch(window):
    return [read(number) for number in window]  # fault


def read(number):
    time.sleep(0.035)  # fault
    return np.full((64, 256), number % 7 / 7, np.float32)


def fetch_windows():
    for first in range(0, BATCHES, WINDOW):
        for batch in get_batch(range(first, first + WINDOW)):
            ready.put(batch)
        count()


def fetch_each():
    while (number := numbers.get()) < BATCHES:
        ready.put(read(number))


def next_batch(_):
    return ready.get()  # fault


def augment(batch):
    noise = [((position * 7919) % 1013) / 1013 for position in range(8000)]
    return batch + np.resize(np.array(noise, np.float32), batch.shape)


for number in range(BATCHES + 2 * WINDOW):
    numbers.put(number)
for target in [fetch_each] * 2 * WINDOW if MENDED else [fetch_windows]:
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.3)  # while the model is built
run(BATCHES, 64, next=next_batch, augment=augment, step=network(64, 256, 40))
