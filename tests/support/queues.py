"""Targets with a known queue: one server, with fixed (`Deterministic`) or exponential service times (`Exponential`).

The end of each service is computed from the arrivals and slept until, so that a busy machine makes single answers late
and never the queue longer. `perfharness stress tests.support.queues:Deterministic --rate 120 --arrivals poisson`
is an M/D/1 queue, `Exponential` an M/M/1 queue.
"""

from __future__ import annotations

import time

import numpy as np

from perfharness.load.request import LoadRequest
from perfharness.model.columns import Int64

SERVICE_S = 0.004


def waits_ns(arrivals_ns: Int64, services_ns: Int64) -> Int64:
    """How long each of the arrivals waits for the server (Lindley's recursion)."""
    steps = services_ns[:-1] - np.diff(arrivals_ns)
    walk = np.concatenate([[0], np.cumsum(steps)])
    found: Int64 = walk - np.minimum.accumulate(walk)
    return found


class Deterministic:
    """One server; every service takes `SERVICE_S`. Only with one worker: the requests come in order."""

    def __init__(self) -> None:
        self._free_ns = 0

    def service_ns(self, request: int) -> int:
        """How long a request is served."""
        del request
        return round(SERVICE_S * 1e9)

    def __call__(self, request: LoadRequest) -> None:
        """Serve until the computed end."""
        self._free_ns = max(self._free_ns, request.intended_ns) + self.service_ns(request.id)
        while (left_ns := self._free_ns - time.perf_counter_ns()) > 0:
            time.sleep(left_ns / 1e9)


class Exponential(Deterministic):
    """The same with exponential service times of that mean."""

    def service_ns(self, request: int) -> int:
        """Drawn from the id of the request, so that it can be computed again."""
        return round(np.random.default_rng([1, request]).exponential(SERVICE_S) * 1e9)
