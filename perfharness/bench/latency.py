"""The timed loop: pre-allocated buffers, consecutive rounds, wall-clock time of each, no other work.

Device time is measured in a separate pass, because recording and reading two events would add a few microseconds to
every round, which matters for a model that takes fifty.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.suites.bench_figures import MUCH_CLOCK_DROP_PERCENT
from perfharness.analysis.suites.latency import is_stable, latency_stats
from perfharness.backends.session import Session
from perfharness.bench.spec import LatencySettings
from perfharness.model.bench import LatencyStats
from perfharness.model.columns import Float64, Int64
from perfharness.model.units import NS_PER_MS

CHECK_FACTOR = 1.25
"""Growth of iterations between checks for a stable median; few checks make chance results unlikely."""

Clock = Callable[[], int]


@dataclass(frozen=True)
class Timed:
    """Iterations in order of execution.

    Args:
        start_ns: on the clock in use.
        wall_ns: duration of each.
        stable: whether the median stabilised; None if not requested.
        ended: reason for fewer iterations than requested; None if all were done.
    """

    start_ns: Int64
    wall_ns: Int64
    stable: bool | None = None
    ended: str | None = None

    @property
    def milliseconds(self) -> Float64:
        """Duration of each iteration."""
        return self.wall_ns / NS_PER_MS


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Disable garbage collection and freeze existing objects while the block runs."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def time_rounds(session: Session, count: int, max_seconds: float, clock: Clock = time.perf_counter_ns) -> Timed:
    """Time at most `count` rounds, at least one; none starts after the time limit."""
    start, end = _touched_zeros(count), _touched_zeros(count)
    done = _time_into(session, start, end, clock() + round(max_seconds * 1e9), clock)
    return Timed(start[:done], (end - start)[:done], ended=_cut_reason(done, count, max_seconds))


def warm_up(session: Session, settings: LatencySettings, clock: Clock = time.perf_counter_ns) -> Timed:
    """Run the warm-up rounds, if any."""
    if not settings.warmup:
        nothing = np.zeros(0, np.int64)
        return Timed(nothing, nothing)
    return time_rounds(session, settings.warmup, settings.max_seconds, clock)


def measure_latency(session: Session, settings: LatencySettings, clock: Clock = time.perf_counter_ns) -> Timed:
    """Run the timed rounds after the warm-up: a fixed number, or until the median is stable."""
    with quiet_collector():
        if settings.until_stable:
            return _until_stable(session, settings, clock)
        if settings.min_seconds:
            return _for_min_seconds(session, settings, clock)
        return time_rounds(session, settings.iterations, settings.max_seconds, clock)


def measure_device_time(session: Session, settings: LatencySettings, clock: Clock = time.perf_counter_ns) -> Float64:
    """Device time of `execute` in milliseconds, in rounds like the timed ones; empty without a device."""
    timer = session.device_timer()
    if timer is None:
        return np.zeros(0)
    deadline = clock() + round(settings.max_seconds * 1e9)
    most = settings.device_iterations or settings.iterations
    found: list[float] = []
    with quiet_collector():
        while len(found) < most and (not found or clock() < deadline):
            session.copy_in()
            timer.start()
            session.execute()
            timer.stop()
            session.copy_out()
            session.synchronize()
            found.append(timer.milliseconds())
    return np.asarray(found)


def stats_of(timed: Timed, warmup: Timed) -> LatencyStats:
    """Statistics of the timed rounds."""
    found = latency_stats(timed.milliseconds, len(warmup.wall_ns), stable=timed.stable)
    assert found is not None, "at least one round is timed"
    return found


def latency_notes(timed: Timed, stats: LatencyStats, clock_drop_percent: float | None = None) -> Iterator[str]:
    """Yield caveats about the latency, one phrase each."""
    if timed.ended is not None:
        yield timed.ended
    if stats.mean.reason is not None:
        yield f"the mean has no interval: {stats.mean.reason}"
    if (drift := stats.drift_percent) is not None:
        side = "above" if drift > 0 else "below"
        yield f"it drifts: the median of the last third is {abs(drift):.1f} % {side} that of the first"
    if clock_drop_percent is not None and clock_drop_percent > MUCH_CLOCK_DROP_PERCENT:
        yield f"the GPU clock fell by {clock_drop_percent:.1f} % during the measurement"


def work_for(session: Session, seconds: float, clock: Clock = time.time_ns, least: int = 1) -> list[int]:
    """Run `least` rounds, and more for `seconds`, without garbage collection; returns their ends, UTC ns."""
    ends: list[int] = []
    with quiet_collector():
        deadline = clock() + round(seconds * 1e9)
        while len(ends) < least or ends[-1] < deadline:
            session.run_round()
            ends.append(clock())
    return ends


def _for_min_seconds(session: Session, settings: LatencySettings, clock: Clock) -> Timed:
    """Run the requested rounds, and more until the minimum time has passed."""
    most = max(settings.iterations, settings.max_iterations)
    start, end = _touched_zeros(most), _touched_zeros(most)
    begin = clock()
    latest = begin + round(settings.max_seconds * 1e9)
    done = _time_into(session, start[: settings.iterations], end[: settings.iterations], latest, clock)
    ended = _cut_reason(done, settings.iterations, settings.max_seconds)
    deadline = begin + round(settings.min_seconds * 1e9)
    if ended is None and done < most and clock() < deadline:
        done += _time_into(session, start[done:], end[done:], deadline, clock)
    return Timed(start[:done], (end - start)[:done], ended=ended)


def _touched_zeros(count: int) -> Int64:
    """Zeros in allocated pages, because `zeros` allocates at the first write, which is in the timed loop."""
    values = np.empty(count, np.int64)
    values.fill(0)
    return values


def _until_stable(session: Session, settings: LatencySettings, clock: Clock) -> Timed:
    deadline = clock() + round(settings.max_seconds * 1e9)
    most = max(settings.iterations, settings.max_iterations)
    start, end = _touched_zeros(most), _touched_zeros(most)
    done, wanted, stable = 0, min(settings.iterations, most), False
    while not stable and done < most and (not done or clock() < deadline):
        done += _time_into(session, start[done:wanted], end[done:wanted], deadline, clock)
        stable = done >= settings.iterations and is_stable((end - start)[:done] / NS_PER_MS, settings.stable_percent)
        wanted = min(most, max(done + 1, round(CHECK_FACTOR * done)))
    ended = None
    if not stable:
        limit = f"after {settings.max_seconds:g} s" if done < most else f"after {most} iterations"
        ended = f"the median was not stable within {settings.stable_percent:g} % {limit}"
    return Timed(start[:done], (end - start)[:done], stable, ended)


def _time_into(session: Session, start: Int64, end: Int64, deadline: int, clock: Clock) -> int:
    """Fill the arrays; returns the number of rounds before the deadline, at least one."""
    copy_in, execute, copy_out, synchronize = (
        session.copy_in,
        session.execute,
        session.copy_out,
        session.synchronize,
    )
    for index in range(len(start)):
        begin = clock()
        copy_in()
        execute()
        copy_out()
        synchronize()
        stop = clock()
        start[index] = begin
        end[index] = stop
        if stop >= deadline:
            return index + 1
    return len(start)


def _cut_reason(done: int, wanted: int, max_seconds: float) -> str | None:
    return None if done == wanted else f"only {done} of {wanted} iterations were done in {max_seconds:g} s"
