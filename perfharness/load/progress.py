"""How a load test goes, from the files of windows as they grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from perfharness.load.histogram import Histogram
from perfharness.load.profile import Profile
from perfharness.load.result import slower_in, times_of
from perfharness.load.windows import GrowingLines

LEAST_WINDOW_NS = 500_000_000
"""The last window of a phase may be shorter, and then says nothing about a second."""


@dataclass(frozen=True)
class LoadStatus:
    """The last full second of all processes together."""

    phase: str
    left_s: float
    """Of all phases, without grace periods."""

    asked_rate: float | None
    """None: a closed loop."""

    achieved_rate: float
    p50_ms: float | None
    p99_ms: float | None
    completed: int
    failed: int
    """Of the run so far; those without an answer in time are not among them."""

    unanswered: int
    """Given up, of the run so far."""

    waiting: int | None = None
    """Requests of this phase that are due and not answered; None: a closed loop."""

    grace_left_s: float | None = None
    """How long late answers are still awaited; None: the phase goes on."""


@dataclass
class LoadProgress:
    """Follows the files.

    Args:
        files: one a process; need not exist yet.
    """

    profile: Profile
    files: Sequence[Path]
    _lines: dict[Path, GrowingLines] = field(default_factory=dict, init=False)
    _last: dict[Path, dict[str, Any]] = field(default_factory=dict, init=False)
    _phases: dict[int, dict[str, Any]] = field(default_factory=dict, init=False)
    _completed: int = field(default=0, init=False)
    _failed: int = field(default=0, init=False)
    _unanswered: int = field(default=0, init=False)
    _windows: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict, init=False)
    """By phase and index."""

    def poll(self) -> LoadStatus | None:
        """What is new; None before the first window."""
        for file in self.files:
            for line in self._lines.setdefault(file, GrowingLines(file)).new():
                if line["kind"] == "phase":
                    self._phases[line["index"]] = line
                elif line["kind"] == "window":
                    if file not in self._last or line["end_ns"] - line["start_ns"] >= LEAST_WINDOW_NS:
                        self._last[file] = line
                    self._completed += line["completed"]
                    self._unanswered += line["unanswered"]
                    self._failed += sum(line["errors"].values()) - line["unanswered"]
                    counts = {name: line[name] for name in ("arrivals", "completed", "unanswered")}
                    self._windows.setdefault((line["phase"], line["index"]), []).append(counts)
        return self._status() if self._last else None

    def _status(self) -> LoadStatus:
        index = max(line["phase"] for line in self._last.values())
        lines = [line for line in self._last.values() if line["phase"] == index]
        phase, latency = self.profile.phases[index], Histogram()
        for line in lines:
            latency.merge(Histogram.of_json(line["latency"]))
        span_s = max(max(line["end_ns"] - line["start_ns"] for line in lines) / 1e9, 1e-9)
        times = times_of(latency, sum(map(slower_in, lines)))
        later_s = sum(one.duration_s for one in self.profile.phases[index + 1 :])
        begun = self._phases.get(index)
        until_s = 0.0 if begun is None else (begun["end_ns"] - perf_counter_ns()) / 1e9
        left_s = max(until_s, 0.0)
        waiting = self._waiting(index) if phase.loop == "open" else None
        return LoadStatus(
            phase=phase.name,
            left_s=later_s + left_s,
            asked_rate=sum(line["arrivals"] for line in lines) / span_s if phase.loop == "open" else None,
            achieved_rate=sum(line["completed"] for line in lines) / span_s,
            p50_ms=times.p50.value,
            p99_ms=times.p99.value,
            completed=self._completed,
            failed=self._failed,
            unanswered=self._unanswered,
            waiting=waiting,
            grace_left_s=max(until_s + self.profile.grace_s, 0.0) if until_s <= 0 and waiting else None,
        )

    def _waiting(self, phase: int) -> int:
        """Requests that are due and not answered, in the windows of a phase that all processes have counted."""
        waiting = index = 0
        while len(lines := self._windows.get((phase, index), [])) == len(self._last):
            waiting += sum(line["arrivals"] - line["completed"] - line["unanswered"] for line in lines)
            index += 1
        return waiting
