"""Every count is two messages to a manager's process. Mended: counted here, shared once a batch."""

import multiprocessing
from collections import Counter

import numpy as np

from tests.faults.frame import MENDED, count, run

ITEMS, LABELS = 32, 20
RNG = np.random.default_rng(14)
WEIGHTS = RNG.normal(0, 0.1, (256, 256)).astype(np.float32)
pending = Counter()


def count_label(label):
    if MENDED:
        pending[label] += 1
        return
    count(2)
    shared[label] = shared.get(label, 0) + 1  # fault


def prepare(_):
    return RNG.normal(size=(ITEMS * 16, 256)).astype(np.float32)


def classify(features):
    for _ in range(8):
        features = np.tanh(features @ WEIGHTS)
    return np.argsort(features, axis=1)[:, -LABELS:]


def report(best):
    for row in best[:ITEMS].tolist():
        for label in row:
            count_label(f"label {label}")
    if MENDED:
        shared.update(pending)
        pending.clear()
        count()


with multiprocessing.get_context("fork").Manager() as manager:
    shared = manager.dict()
    run(50, ITEMS, prepare=prepare, classify=classify, report=report)
