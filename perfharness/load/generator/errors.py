"""When a run is to be stopped for its errors: over all processes, and not for a burst."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.load.profile import Profile
from perfharness.load.windows import GrowingLines
from perfharness.model.load import WINDOWS_NAME

PARTS = 5
"""Of the time that is judged. In each of them there has to be too much: errors that last for less than about half of
the time end nothing, wherever they lie."""

LEAST_ANSWERS = 20
"""In all parts together."""


@dataclass
class _Other:
    """Another process."""

    lines: GrowingLines
    warmups: set[int] = field(default_factory=set)


@dataclass
class ErrorWatch:
    """Follows the windows of all processes of a run.

    Args:
        limit: share of the answers that may be errors.
        window_ns: how long more of them are borne.
        folder: of this process in its run; the others' are beside it. None: there are no others.
    """

    limit: float
    window_ns: int
    folder: Path | None = None
    _others: dict[Path, _Other] = field(default_factory=dict, init=False)
    _seen: deque[tuple[int, int, int]] = field(default_factory=deque, init=False)
    """Windows: when each ended, its answers, and the errors among them."""

    _begin_ns: int | None = field(default=None, init=False)
    _end_ns: int = field(default=0, init=False)
    _told: str | None = field(default=None, init=False)

    @staticmethod
    def of(profile: Profile, folder: Path) -> ErrorWatch | None:
        """Of a process with this folder in its run; None: errors end nothing."""
        if profile.max_error_rate is None:
            return None
        return ErrorWatch(profile.max_error_rate, round(profile.error_window_s * 1e9), folder)

    def add(self, window: Mapping[str, Any]) -> None:
        """A window of this process, of a phase that counts; reads those of the others."""
        self._take(window)
        for file in () if self.folder is None else self.folder.parent.glob(f"proc_*_gpu_*/{WINDOWS_NAME}"):
            if file.parent != self.folder:
                self._read(self._others.setdefault(file, _Other(GrowingLines(file))))

    def _read(self, other: _Other) -> None:
        for line in other.lines.new():
            if line["kind"] == "phase" and line["is_warmup"]:
                other.warmups.add(line["index"])
            elif line["kind"] == "window" and line["phase"] not in other.warmups:
                self._take(line)
            elif line["kind"] == "end" and line["status"] == "stopped-by-errors":
                self._told = line["reason"]

    def _take(self, line: Mapping[str, Any]) -> None:
        failed = sum(line["errors"].values())
        self._seen.append((line["end_ns"], line["ok"] + failed, failed))
        self._begin_ns = line["start_ns"] if self._begin_ns is None else min(self._begin_ns, line["start_ns"])
        self._end_ns = max(self._end_ns, line["end_ns"])

    def reason(self) -> str | None:
        """Why the run is to be stopped; None: it goes on."""
        if self._told is not None:
            return self._told
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
