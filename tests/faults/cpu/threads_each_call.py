"""A solver makes a pool of threads for each call of its forward function, and ends it again. Mended: one pool."""

from multiprocessing.pool import ThreadPool

import numpy as np

from tests.faults.frame import MENDED, batches, count, stage

CALLS, THREADS = 6, 16
kept = ThreadPool(THREADS) if MENDED else None


def project(cone):
    return np.maximum(cone, 0.0) - 0.1 * cone


def forward(cones):
    if MENDED:
        return kept.map(project, cones)
    count()
    with ThreadPool(THREADS) as pool:  # fault
        return pool.map(project, cones)


def factorize(index):
    matrix = np.random.default_rng(index).normal(0, 1, (160, 160))
    return np.linalg.cholesky(matrix @ matrix.T + 160 * np.eye(160))


def polish(cones):
    total = sum(float(np.linalg.norm(cone)) for cone in cones)
    for step in range(12000):
        total -= (total - step) * 1e-4


for index in batches(50, CALLS):
    with stage("factorize"):
        factor = factorize(index)
    with stage("solve"):
        cones = np.array_split(factor, 8)
        for _ in range(CALLS):
            with stage("forward"):
                cones = forward(cones)
    with stage("polish"):
        polish(cones)
if MENDED:
    kept.terminate()
