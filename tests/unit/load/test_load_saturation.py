"""Whether a target keeps up, said while the load goes on: of flows whose queue is known."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from perfharness.analysis.load.saturation import Flow, saturation_of


def flows_of(arrivals: np.ndarray, ends: np.ndarray, seconds: int) -> list[Flow]:
    edges = np.arange(seconds + 1)
    due, ended = (np.histogram(one, edges)[0] for one in (arrivals, ends))
    return [Flow(1.0, int(came), int(went)) for came, went in zip(due, ended, strict=True)]


def queue(
    rate: float, service_s: float, *, servers: int = 1, seconds: int = 60, seed: int = 1,
    stall: tuple[float, float] | None = None, spread: float = 0.0,
) -> list[Flow]:  # fmt: skip
    """Poisson arrivals, first come first served; `spread` is the mean of an exponential part of each service."""
    drawn = np.random.default_rng(seed)
    arrivals = np.cumsum(drawn.exponential(1 / rate, int(rate * seconds * 1.2)))
    arrivals = arrivals[arrivals < seconds]
    free, ends = [0.0] * servers, []
    for at in arrivals:
        begin = max(at, heapq.heappop(free))
        if stall is not None and stall[0] <= begin < sum(stall):
            begin = sum(stall)
        ends.append(begin + service_s + (drawn.exponential(spread) if spread else 0.0))
        heapq.heappush(free, ends[-1])
    return flows_of(arrivals, np.array(ends), seconds)


def first_said(flows: list[Flow]) -> int | None:
    """After how many seconds it is said that the target does not keep up."""
    return next((end for end in range(1, len(flows) + 1) if saturation_of(flows[:end]) is not None), None)


@pytest.mark.parametrize(("load", "before_s"), [(3.0, 26), (2.0, 22), (1.5, 20), (1.2, 60), (1.1, 120)])
def test_a_queue_that_grows_is_said(load: float, before_s: int) -> None:
    flows = queue(100 * load, 0.01, seconds=120)
    said = first_said(flows)
    assert said is not None
    assert 10 <= said <= before_s
    found = saturation_of(flows)
    assert found is not None
    assert found.answered_rate == pytest.approx(100, rel=0.02)  # which is what the server can do
    assert found.asked_rate == pytest.approx(100 * load, rel=0.1)
    assert found.waiting == sum(one.due - one.ended for one in flows)


def test_how_long_a_request_will_wait_by_hand() -> None:
    """20 come and 10 are answered a second; after 20 s 200 wait, after 50 s more 700, which take 70 s."""
    found = saturation_of([Flow(1.0, 20, 10)] * 20)
    assert found is not None
    assert (found.asked_rate, found.answered_rate, found.waiting) == (20, 10, 200)
    assert found.wait_s(50) == 70


@pytest.mark.parametrize(
    "make",
    [
        *(partial(queue, rate, 0.01, seconds=120, seed=seed) for rate in (50, 80, 95) for seed in range(5)),
        *(partial(queue, 80, 0.002, spread=0.008, seconds=120, seed=seed) for seed in range(5)),
        partial(queue, 80, 0.01, stall=(20, 2)),
        partial(queue, 40, 0.01, stall=(20, 4)),
        partial(queue, 5, 20.0, servers=1000, seconds=120),  # answers take 20 s, and none waits
        *(partial(queue, rate, 5.0, spread=10.0, servers=3000, seconds=90) for rate in (5, 50)),
        lambda: [Flow(1.0, 10, 0)] * 60,  # nothing was ever answered: that is no rate
        lambda: [Flow(1.0, 0, 0)] * 60,
        list,
    ],
)
def test_a_target_that_keeps_up_or_stalls_is_not_called_saturated(make: Callable[[], list[Flow]]) -> None:
    assert first_said(make()) is None
