"""Phases -> times at which requests are due, and the content of each. Seeded: the same profile, the same load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfharness.errors import UsageError
from perfharness.load.profile import MixEntry, Phase, Profile
from perfharness.model.columns import Int64

MOST_ARRIVALS = 5_000_000
"""Per phase: all rows are read at the end."""

_GRID = 4096

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arrivals:
    """The requests of an open phase that one process sends.

    Args:
        offsets_ns: times since the begin of the phase, ascending.
        ids: ids of the requests.
        kinds: index of the entry of the mix; empty: no mix.
        next_id: the first id after this phase, over all processes.
    """

    offsets_ns: Int64
    ids: Int64
    kinds: Int64
    next_id: int


def arrivals_of(profile: Profile, index: int, first_id: int = 0, process: int = 0, processes: int = 1) -> Arrivals:
    """The arrivals of the `index`-th phase, an open one. Each of several processes takes every `processes`-th.

    Raises `UsageError` if a file of arrivals cannot be read, or there are too many arrivals.
    """
    phase = profile.phases[index]
    random = np.random.default_rng([profile.seed, index])
    offsets_ns = np.round(arrival_times_s(phase, random) * 1e9).astype(np.int64)
    kinds = draw_kinds(profile.mix, len(offsets_ns), random)
    mine, next_id = slice(process, None, processes), first_id + len(offsets_ns)
    return Arrivals(offsets_ns[mine], np.arange(first_id, next_id)[mine], kinds[mine], next_id)


def check_arrivals(profile: Profile) -> None:
    """Raises `UsageError` if a file of arrivals is unreadable or has none within its phase, or a phase has too many."""
    for phase in profile.phases:
        if phase.times_file is not None:
            first_s = float(read_arrivals(phase.times_file)[0])
            if first_s >= phase.duration_s:
                raise UsageError(
                    f"{phase.times_file}: its first arrival is after {first_s:.10g} s, but {phase.name} lasts "
                    f"{phase.duration_s:g} s; times are seconds from the begin of the phase"
                )
        elif phase.loop == "open":
            _count(phase, _expected(phase)[1])


def _count(phase: Phase, expected: Floats) -> float:
    total = float(expected[-1])
    if total > MOST_ARRIVALS:
        raise UsageError(
            f"{phase.name} has {total:.3g} requests, more than {MOST_ARRIVALS:,}; use a shorter phase or a lower rate"
        )
    return total


def arrival_times_s(phase: Phase, random: np.random.Generator) -> Floats:
    """Seconds since the begin of the phase, ascending, below its duration."""
    if phase.times_file is not None:
        times = read_arrivals(phase.times_file)
        return times[times < phase.duration_s]
    times, expected = _expected(phase)
    total = _count(phase, expected)
    if phase.arrivals == "constant":
        counts: Floats = np.arange(int(np.ceil(total - 1e-9)), dtype=np.float64)
    elif phase.arrivals == "poisson":
        counts = _poisson(total, random)
    else:
        counts = np.repeat(_poisson(total / phase.burst, random) * phase.burst, phase.burst)
    return np.interp(counts, expected, times)


def _expected(phase: Phase) -> tuple[Floats, Floats]:
    """Expected number of arrivals up to each time, as points of a piecewise linear function."""
    rate, duration = phase.rate or 0.0, phase.duration_s
    if phase.rate_to is None:
        return np.array([0.0, duration]), np.array([0.0, rate * duration])
    times = np.linspace(0, duration, _GRID + 1)
    slope = (phase.rate_to - rate) / duration
    return times, rate * times + slope * times**2 / 2


def _poisson(expected: float, random: np.random.Generator) -> Floats:
    """The times of a Poisson process of rate 1, below `expected`."""
    drawn = np.cumsum(random.exponential(size=int(expected + 10 * expected**0.5 + 20)))
    return drawn[drawn < expected]


def draw_kinds(mix: tuple[MixEntry, ...], count: int, random: np.random.Generator) -> Int64:
    """Draw entries of a mix by their weights, as indices; empty if there is no mix."""
    if not mix:
        return np.empty(0, np.int64)
    weights = np.array([entry.weight for entry in mix], np.float64)
    return random.choice(len(mix), count, p=weights / weights.sum()).astype(np.int64)


def read_arrivals(path: Path) -> Floats:
    """The times in a file: seconds, one per line, ascending. Raises `UsageError`."""
    try:
        times = np.array([float(line) for line in path.read_text("utf-8-sig").split()], np.float64)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot read arrival times ({reason}); one time in seconds per line") from error
    if not len(times) or not np.isfinite(times).all() or (times < 0).any():
        raise UsageError(f"{path}: needs one or more arrival times in seconds, each 0 or more")
    return np.sort(times)
