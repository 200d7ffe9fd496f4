"""Queues whose services are known: what the generator measures is no less than the recursion over its own arrivals.

Request by request, no wait is shorter. How much longer they are, which is the machine's doing, and whether both agree
with queueing theory, `scripts/load_queues` measures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.load.request import Answer, LoadRequest
from perfharness.model.load import REQUESTS_NAME
from tests.support.queues import SERVICE_S, Deterministic, Exponential, waits_ns
from tests.unit.load.test_load_run import run


@pytest.mark.parametrize("kind", [Deterministic, Exponential])
def test_measured_waits_are_those_of_the_recursion(tmp_path: Path, kind: type[Deterministic]) -> None:
    made = kind()

    def serve(request: LoadRequest) -> Answer:
        made(request)
        return Answer()

    phase = {"duration": "1.5s", "rate": 0.95 / SERVICE_S, "arrivals": "poisson"}
    found = run(tmp_path, serve, phases=[phase], seed=3).phases[0]
    rows = pq.read_table(tmp_path / REQUESTS_NAME)
    arrivals, done = (rows[name].to_numpy() for name in ("intended_ns", "done_ns"))
    services = np.array([made.service_ns(one) for one in rows["id"].to_pylist()])
    expected = waits_ns(arrivals, services) + services
    measured = done - arrivals
    assert (measured >= expected).all()  # a service never ends before its computed end
    begun, ready = rows["begun_ns"].to_numpy(), rows["ready_ns"].to_numpy()
    assert (ready[1:] >= done[:-1]).all()  # one server, first come first served
    assert found.queueing.mean.value == pytest.approx((begun - arrivals).mean() / 1e6)
    assert found.latency.mean.value == pytest.approx(measured.mean() / 1e6)
    assert found.latency.p90.value == pytest.approx(np.quantile(measured, 0.9, method="inverted_cdf") / 1e6, rel=0.002)
