"""What the generator can do by itself: the same workers, with a target that does nothing."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from perfharness.load.arrivals import Arrivals, arrival_times_s
from perfharness.load.generator.run import LEAD_NS
from perfharness.load.generator.schedule import OpenSchedule
from perfharness.load.generator.timer import Stop
from perfharness.load.generator.workers import AnyWorkers, Served, workers_for
from perfharness.load.histogram import Ints
from perfharness.load.profile import Phase, Profile
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.windows import Done
from perfharness.model.load import Capacity

LIMIT_MS = 1.0
LOWEST_RATE, HIGHEST_RATE = 200.0, 200_000.0
"""Rates that are asked for; no generator in Python does more than the highest."""

STEP_S, LEAST_REQUESTS = 0.25, 50
STEPS_UP, STEPS_DOWN = 4, 2
"""Doublings and halvings of the rate that is asked for: one to four seconds in all."""

TRIES = 2
"""The better one counts, for another program may take the CPU for a moment."""


WORKERS = 8
"""At most, for no request lasts long enough to need more."""

HOW = "a target that does nothing, a quarter of a second at each rate, doubled until the lateness is too high"
NOT_NEEDED = "not measured: a closed loop has no moments to be late for"


class _Nothing:
    is_async = False

    def open(self) -> None:
        """Nothing."""

    def call(self, request: LoadRequest) -> Answer:
        """An answer."""
        del request
        return Answer()

    def close(self) -> None:
        """Nothing."""


class _NothingAsync(_Nothing):
    is_async = True

    async def call_async(self, request: LoadRequest) -> Answer:
        """An answer."""
        return self.call(request)

    async def close_async(self) -> None:
        """Nothing."""


def peak_rate(profile: Profile, processes: int = 1) -> float | None:
    """The highest rate of the profile, of each process; None where no phase has one."""
    rates = [
        max(phase.rate, phase.rate_to or 0, phase.rate * max(phase.day) / float(np.mean(phase.day)) if daily else 0)
        for phase in profile.phases
        if phase.rate is not None
        for daily in [phase.shape == "daily"]
    ]
    return max(rates) / processes if rates else None


def measure_capacity(profile: Profile, *, is_async: bool, processes: int = 1) -> Capacity:
    """The highest rate with a p99 of lateness below a millisecond, about where the profile needs it."""
    asked = peak_rate(profile, processes)
    if asked is None:
        return Capacity(how=NOT_NEEDED, limit_ms=LIMIT_MS)
    workers = workers_for(_NothingAsync if is_async else _Nothing, min(profile.concurrency, WORKERS))
    workers.open()
    try:
        return _search(workers, min(max(asked, LOWEST_RATE), HIGHEST_RATE))
    finally:
        workers.close()


def _search(workers: AnyWorkers, rate: float) -> Capacity:
    late_ms = _lateness_p99_ms(workers, rate)
    if late_ms < LIMIT_MS:
        for _ in range(STEPS_UP):
            further_ms = _lateness_p99_ms(workers, 2 * rate)
            if further_ms >= LIMIT_MS:
                return Capacity(rate=rate, is_limit=True, lateness_p99_ms=late_ms, limit_ms=LIMIT_MS, how=HOW)
            rate, late_ms = 2 * rate, further_ms
        return Capacity(rate=rate, lateness_p99_ms=late_ms, limit_ms=LIMIT_MS, how=HOW)
    for _ in range(STEPS_DOWN):
        rate /= 2
        late_ms = _lateness_p99_ms(workers, rate)
        if late_ms < LIMIT_MS:
            return Capacity(rate=rate, is_limit=True, lateness_p99_ms=late_ms, limit_ms=LIMIT_MS, how=HOW)
    why = f"{HOW}; none was low enough: at {rate:.3g}/s p99 was {late_ms:.3g} ms"
    return Capacity(is_limit=True, lateness_p99_ms=late_ms, limit_ms=LIMIT_MS, how=why)


def _lateness_p99_ms(workers: AnyWorkers, rate: float) -> float:
    best_ms = float("inf")
    for _ in range(TRIES):
        if (best_ms := min(best_ms, _tried_ms(workers, rate))) < LIMIT_MS:
            break
    return best_ms


def _tried_ms(workers: AnyWorkers, rate: float) -> float:
    phase = Phase(name="capacity", duration_s=max(STEP_S, LEAST_REQUESTS / rate), rate=rate)
    offsets = np.round(arrival_times_s(phase, np.random.default_rng(0)) * 1e9).astype(np.int64)
    ids: Ints = np.arange(len(offsets))
    schedule = OpenSchedule(phase, perf_counter_ns() + LEAD_NS, Arrivals(offsets, ids, ids[:0], len(ids)), ())
    found: list[Done] = []
    workers.serve(Served(schedule, found.append, Stop(), None, grace_ns=1_000_000_000))
    late_ns = [one.sent_ns - max(one.intended_ns, one.ready_ns) if one.error is None else 1e12 for one in found]
    return float(np.quantile(late_ns, 0.99, method="higher")) / 1e6
