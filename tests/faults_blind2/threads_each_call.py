"""A solver makes a pool of threads for each call of its forward function, and ends it again.

cvxgrp/diffcp#28, AuthorizeNet/sdk-java#115. Mended: one pool for all calls.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.pool import ThreadPool

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, CALLS, THREADS = 50, 6, 16
pools = 0
kept = ThreadPool(THREADS) if MENDED else None


def project(cone: np.ndarray) -> np.ndarray:
    return np.maximum(cone, 0.0) - 0.1 * cone


def forward(cones: list[np.ndarray]) -> list[np.ndarray]:
    global pools
    if kept is not None:
        return kept.map(project, cones)
    pools += 1
    with ThreadPool(THREADS) as pool:  # fault
        return pool.map(project, cones)


def factorize(index: int) -> np.ndarray:
    matrix = np.random.default_rng(index).normal(0, 1, (160, 160))
    return np.linalg.cholesky(matrix @ matrix.T + 160 * np.eye(160))


def polish(cones: list[np.ndarray]) -> float:
    total = sum(float(np.linalg.norm(cone)) for cone in cones)
    for step in range(12000):
        total -= (total - step) * 1e-4
    return total


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=CALLS):
            with perf.range("factorize"):
                factor = factorize(index)
            with perf.range("solve"):
                cones = np.array_split(factor, 8)
                for _ in range(CALLS):
                    with perf.range("forward"):
                        cones = forward(cones)
            with perf.range("polish"):
                polish(cones)
perf.finalize()
if kept is not None:
    kept.terminate()
print(pools, "pools made")
