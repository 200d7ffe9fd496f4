"""A shared array is used number by number, annotated from outside. Mended: through a view."""

import multiprocessing

import numpy as np

from tests.faults.frame import MENDED, count

NUMBERS = 60_000
shared = multiprocessing.Array("d", NUMBERS)
view = np.frombuffer(shared.get_obj(), np.float64)


def put(values):
    if MENDED:
        with shared.get_lock():
            view[:] = values
    else:
        count(NUMBERS)
        shared[:] = values  # fault


def get():
    if MENDED:
        return view.copy()
    return np.array(shared[:])  # fault


def featurize(index):
    return np.sin(np.arange(NUMBERS, dtype=np.float64) * index)


def exchange(values):
    put(values)
    return get()


def classify(values):
    table = np.resize(values, (96, 96)) + np.eye(96)
    return float(np.linalg.svd(table, compute_uv=False)[0])


def handle(index):
    return classify(exchange(featurize(index)))


def serve():
    for index in range(30):
        handle(index)


serve()
