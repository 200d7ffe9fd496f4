"""When a run is to be stopped for its errors, and not for a burst."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from perfharness.load.profile import Profile

PARTS = 5
"""Of the time that is judged. In each of them there has to be too much: errors that last for less than about half of
the time end nothing, wherever they lie."""

LEAST_ANSWERS = 20
"""In all parts together."""


@dataclass
class ErrorWatch:
    """Follows the windows of this process.

    Args:
        limit: share of the answers that may be errors.
        window_ns: how long more of them are borne.
    """

    limit: float
    window_ns: int
    _seen: deque[tuple[int, int, int]] = field(default_factory=deque, init=False)
    """Windows: when each ended, its answers, and the errors among them."""

    _begin_ns: int | None = field(default=None, init=False)
    _end_ns: int = field(default=0, init=False)

    @staticmethod
    def of(profile: Profile) -> ErrorWatch | None:
        """None: errors end nothing."""
        if profile.max_error_rate is None:
            return None
        return ErrorWatch(profile.max_error_rate, round(profile.error_window_s * 1e9))

    def add(self, window: Mapping[str, Any]) -> None:
        """A window of a phase that counts."""
        failed = sum(window["errors"].values())
        self._seen.append((window["end_ns"], window["ok"] + failed, failed))
        self._begin_ns = window["start_ns"] if self._begin_ns is None else self._begin_ns
        self._end_ns = window["end_ns"]

    def reason(self) -> str | None:
        """Why the run is to be stopped; None: it goes on."""
        first_ns = self._end_ns - self.window_ns
        self._seen = deque(one for one in self._seen if one[0] > first_ns)
        if self._begin_ns is None or first_ns < self._begin_ns or not self._seen:
            return None
        ends, answers, failed = np.array(self._seen, np.int64).T
        if answers.sum() < LEAST_ANSWERS:
            return None
        edges = [first_ns + self.window_ns * part // PARTS for part in range(PARTS + 1)]
        parts = [(ends > begin) & (ends <= end) for begin, end in pairwise(edges)]
        judged = [part for part in parts if answers[part].sum()]
        if not all(failed[part].sum() > self.limit * answers[part].sum() for part in judged):
            return None
        return (
            f"for {self.window_ns / 1e9:g} s more than {self.limit:.1%} of the answers were errors, "
            f"{failed.sum()} of {answers.sum()}"
        )
