"""Whether a target that is under load keeps up, while the load goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

LEAST_S = 10.0
"""What is judged is at least that long; a stall that is shorter than half of it is none of this."""

KEPT_UP = 0.95
"""Part of the requests that became due that has to be answered."""

SETTLING = 4

SIGMAS = 4.0
"""By how many standard deviations the queue has to grow: of arrivals and answers that come at random."""


@dataclass(frozen=True)
class Flow:
    """Requests of a window of an open loop."""

    seconds: float
    due: int
    ended: int
    """Answered, or given up."""


@dataclass(frozen=True)
class Saturation:
    """More requests became due than were answered, and the answers did not become more."""

    over_s: float
    asked_rate: float
    answered_rate: float
    waiting: int
    """Requests that are due and not answered."""

    def wait_s(self, left_s: float) -> float:
        """How long a request waits that becomes due so much later, where nothing changes."""
        return (self.waiting + (self.asked_rate - self.answered_rate) * left_s) / self.answered_rate


def saturation_of(flows: Sequence[Flow]) -> Saturation | None:
    """Of the windows of a phase so far; None: it keeps up, or nothing can be said.

    The last 10 s are judged, and the last 20 s, 40 s, …, for the less is missing, the longer it takes to see it. The
    begin is not: as long as the first answers take, and some time after that, answers are missing in any case.
    """
    waiting = sum(one.due - one.ended for one in flows)
    flows = flows[_begin(flows) :]
    least_s = LEAST_S
    while True:
        last = _last(flows, least_s)
        if last is None:
            return None
        if _grows(last):
            seconds = sum(one.seconds for one in last)
            due, ended = sum(one.due for one in last), sum(one.ended for one in last)
            return Saturation(seconds, due / seconds, ended / seconds, waiting)
        least_s *= 2


def _begin(flows: Sequence[Flow]) -> int:
    """The window from which on answers are expected: several times what the requests of the first second took."""
    due = next((one.due for one in flows if one.due), 0)
    ended = 0
    for place, one in enumerate(flows):
        ended += one.ended
        if due and ended >= due:
            return SETTLING * place
    return len(flows)


def _last(flows: Sequence[Flow], seconds: float) -> Sequence[Flow] | None:
    """The last windows that are at least so long; None: there are not as many."""
    total, begin = 0.0, len(flows)
    while begin and total < seconds * 0.99:  # a window is a second, but for what the clock makes of it
        begin -= 1
        total += flows[begin].seconds
    return flows[begin:] if total >= seconds * 0.99 else None


def _grows(flows: Sequence[Flow]) -> bool:
    middle = len(flows) // 2
    first, last = _Sum.of(flows[:middle]), _Sum.of(flows[middle:])
    if not first.ended or last.ended > first.ended + sqrt(first.ended + last.ended):
        return False
    due, ended = first.due + last.due, first.ended + last.ended
    is_beyond_chance = due - ended > SIGMAS * sqrt(2 * due)
    is_in_both = min(first.growth, last.growth) > (due - ended) / 4
    return is_beyond_chance and is_in_both and ended < KEPT_UP * due


@dataclass(frozen=True)
class _Sum:
    due: int
    ended: int

    @staticmethod
    def of(flows: Sequence[Flow]) -> _Sum:
        return _Sum(sum(one.due for one in flows), sum(one.ended for one in flows))

    @property
    def growth(self) -> int:
        """Of what is open."""
        return self.due - self.ended
