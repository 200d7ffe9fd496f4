"""How a load test goes: the launch's view, and the last second of the load."""

from __future__ import annotations

import time
from collections.abc import Sequence

from perfharness.cli.support.live import LaunchView
from perfharness.load.profile import Profile
from perfharness.load.progress import LoadProgress, LoadStatus
from perfharness.model.load import WINDOWS_NAME
from perfharness.render.console import Console
from perfharness.render.numbers import significant
from perfharness_launcher.process import RunningProcess

LINE_S, MOST_LINES = 5.0, 20
"""Seconds between two lines, and their number, where there is no terminal."""


class LoadView(LaunchView):
    """The launch's view, and the load's last second: on a terminal below the table, elsewhere a line now and then."""

    def __init__(self, console: Console, profile: Profile) -> None:
        super().__init__(console)
        self._profile = profile
        self._progress: LoadProgress | None = None
        self._next_line = 0.0

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """Follow their files."""
        super().started(processes)
        self._progress = LoadProgress(self._profile, [process.folder / WINDOWS_NAME for process in processes])

    def details(self) -> list[str]:
        """The line of the load."""
        status = self._status()
        return [] if status is None else [status_text(status)]

    def _status(self) -> LoadStatus | None:
        return None if self._progress is None else self._progress.poll()

    def _draw(self, ending: bool) -> None:
        if not (self._console.is_terminal or self._stage or ending):
            status = self._status()
            if status is not None and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + max(LINE_S, self._profile.duration_s / MOST_LINES)
                self._add_line(status_text(status))
        super()._draw(ending)


def status_text(status: LoadStatus) -> str:
    """The last second of a running load in one line."""
    asked = "" if status.asked_rate is None else f"{significant(status.asked_rate)} asked, "
    parts = [f"{asked}{significant(status.achieved_rate)} answered per second"]
    times = (("p50", status.p50_ms), ("p99", status.p99_ms))
    parts += [f"{name} {significant(value)} ms" for name, value in times if value]
    parts += [] if status.waiting is None else [f"{status.waiting} open"]
    parts.append(f"{status.failed} errors")
    parts += [f"{status.unanswered} unanswered"] if status.unanswered else []
    if status.grace_left_s is not None:
        parts.append(f"waiting up to {status.grace_left_s:.0f} s for late answers")
    return f"{status.phase}: {', '.join(parts)}; {status.left_s:.0f} s left"
