"""Phases -> the moments at which requests are due, and what each asks for. Seeded: the same profile, the same load."""

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
        offsets_ns: since the begin of the phase, ascending.
        ids: of the requests.
        kinds: index of the entry of the mix; empty: there is no mix.
        next_id: the first one after this phase, over all processes.
    """

    offsets_ns: Int64
    ids: Int64
    kinds: Int64
    next_id: int


def arrivals_of(profile: Profile, index: int, first_id: int = 0, process: int = 0, processes: int = 1) -> Arrivals:
    """The arrivals of the `index`-th phase, an open one; of several processes each takes every `processes`-th.

    Raises `UsageError` where a file of arrivals cannot be read, or there are too many.
    """
    phase = profile.phases[index]
    random = np.random.default_rng([profile.seed, index])
    offsets_ns = np.round(arrival_times_s(phase, random) * 1e9).astype(np.int64)
    kinds = MixDraw(profile.mix, random).draw(len(offsets_ns))
    mine, next_id = slice(process, None, processes), first_id + len(offsets_ns)
    return Arrivals(offsets_ns[mine], np.arange(first_id, next_id)[mine], kinds[mine], next_id)


def check_arrivals(profile: Profile) -> None:
    """Raises `UsageError` where a file of arrivals cannot be read or has none in the time of its phase, or a phase has
    more than can be held.
    """
    for phase in profile.phases:
        if phase.times_file is not None:
            first_s = float(read_arrivals(phase.times_file)[0])
            if first_s >= phase.duration_s:
                raise UsageError(
                    f"{phase.times_file}: its first arrival is after {first_s:.10g} s, and {phase.name} lasts "
                    f"{phase.duration_s:g} s; times are seconds from the begin of the phase"
                )
        elif phase.loop == "open":
            _count(phase, _expected(phase)[1])


def _count(phase: Phase, expected: Floats) -> float:
    total = float(expected[-1])
    if total > MOST_ARRIVALS:
        raise UsageError(
            f"{phase.name} has {total:.3g} requests, more than {MOST_ARRIVALS:,}; make it shorter, or slower"
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
    """How many arrivals are expected up to each time, as points that straight lines join."""
    rate, duration = phase.rate or 0.0, phase.duration_s
    if phase.rate_to is None:
        return np.array([0.0, duration]), np.array([0.0, rate * duration])
    times = np.linspace(0, duration, _GRID + 1)
    slope = (phase.rate_to - rate) / duration
    return times, rate * times + slope * times**2 / 2


def _poisson(expected: float, random: np.random.Generator) -> Floats:
    """The moments of a Poisson process of rate 1, below `expected`."""
    drawn = np.cumsum(random.exponential(size=int(expected + 10 * expected**0.5 + 20)))
    return drawn[drawn < expected]


class MixDraw:
    """Draws entries of a mix by their weights."""

    def __init__(self, mix: tuple[MixEntry, ...], random: np.random.Generator) -> None:
        self._random = random
        self._shares = np.array([entry.weight for entry in mix], np.float64)
        self._shares /= self._shares.sum() or 1.0

    def draw(self, count: int) -> Int64:
        """Indices of entries; empty where there is no mix."""
        if not len(self._shares):
            return np.empty(0, np.int64)
        return self._random.choice(len(self._shares), count, p=self._shares).astype(np.int64)


def read_arrivals(path: Path) -> Floats:
    """The times of a file, in seconds, one a line, ascending. Raises `UsageError`."""
    try:
        times = np.array([float(line) for line in path.read_text("utf-8-sig").split()], np.float64)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: its arrival times cannot be read ({reason}); one time in seconds a line") from error
    if not len(times) or not np.isfinite(times).all() or (times < 0).any():
        raise UsageError(f"{path}: needs arrival times in seconds, 0 or more; one of them is not, or there is none")
    return np.sort(times)
