"""Queues whose waits are known: theory, the arrivals that we make, and what the generator measures.

Theory and arrivals are compared over a hundred thousand requests, without a clock. What is measured is compared with
the recursion over the same arrivals, request by request: no wait is shorter.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.load.profile import Phase
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.schedule import arrival_times_s
from perfharness.model.load import REQUESTS_NAME
from tests.support.queues import SERVICE_S, Deterministic, Exponential, waits_ns
from tests.unit.load.test_load_run import run

PARTS = 20


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("is_exponential", [False, True], ids=["M/D/1", "M/M/1"])
def test_waits_of_our_arrivals_are_those_of_theory(load: float, is_exponential: bool) -> None:
    """Mean wait: load * service / (1 - load), and half of that where every service takes the same time."""
    random = np.random.default_rng(4)
    phase = Phase(duration_s=1e6 * SERVICE_S / load, rate=load / SERVICE_S, arrivals="poisson")
    arrivals = np.round(arrival_times_s(phase, random) * 1e9).astype(np.int64)
    drawn = random.exponential(SERVICE_S, len(arrivals)) if is_exponential else np.full(len(arrivals), SERVICE_S)
    waits = waits_ns(arrivals, np.round(drawn * 1e9).astype(np.int64)) / 1e9
    theory = load * SERVICE_S / (1 - load) * (1 if is_exponential else 0.5)
    means = np.array([part.mean() for part in np.array_split(waits, PARTS)])  # parts are far longer than busy periods
    from scipy import stats  # takes long to import

    half = stats.t.ppf(0.9995, PARTS - 1) * means.std(ddof=1) / PARTS**0.5
    assert abs(means.mean() - theory) < half
    assert half < 0.25 * theory


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
