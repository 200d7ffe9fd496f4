"""Live view of a load test: that of a launch, and the last second of the load."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfharness.cli.support.live import LaunchView
from perfharness.model.load import UNANSWERED, WINDOWS_NAME
from perfharness.render.console import Console
from perfharness.render.numbers import significant
from perfharness_launcher.process import RunningProcess

LINE_S, MANY_LINES = 5.0, 10
"""Without a terminal, print every LINE_S; after each MANY_LINES lines, half as often."""

LEAST_WINDOW_NS = 500_000_000
"""Ignore shorter windows, at the end of a phase: too few requests for rates."""


class LoadProgress:
    """Follows the window files of the processes, which may not exist yet."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._offsets = dict.fromkeys(files, 0)
        self._last: dict[Path, dict[str, Any]] = {}
        self._phase: dict[str, Any] = {}
        self._begin_s = 0.0
        self._errors: Counter[str] = Counter()

    def text(self) -> str | None:
        """Last full second of all processes in one line; percentiles are of the slowest process."""
        for file in self._offsets:
            for line in self._new_lines(file):
                if line["kind"] == "phase":
                    self._begin_s = self._begin_s or time.perf_counter()
                    self._phase = line
                elif line["kind"] == "window":
                    self._errors.update(line["errors"])
                    if file not in self._last or line["end_ns"] - line["start_ns"] >= LEAST_WINDOW_NS:
                        self._last[file] = line
        return self._line() if self._last else None

    def times(self) -> tuple[float, float] | None:
        """Seconds since the first phase began and of all phases, or None before and after the load."""
        if not self._phase:
            return None
        passed_s = time.perf_counter() - self._begin_s
        total_s = self._phase["end_ns"] / 1e9 + self._phase["later_s"] - self._begin_s
        return (passed_s, total_s) if passed_s < total_s else None

    def _new_lines(self, file: Path) -> list[dict[str, Any]]:
        try:
            with file.open("rb") as opened:
                opened.seek(self._offsets[file])
                text = opened.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[file] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _line(self) -> str:
        phase, lines = self._phase, list(self._last.values())
        span_s = max(line["end_ns"] - line["start_ns"] for line in lines) / 1e9
        left_s = max((phase["end_ns"] - time.perf_counter_ns()) / 1e9, 0.0) + phase["later_s"]
        sums = {name: sum(line[name] or 0 for line in lines) for name in ("arrivals", "completed", "open")}
        slowest = {name: max(line[f"{name}_ms"] or 0.0 for line in lines) for name in ("p50", "p99")}
        is_open = phase["loop"] == "open"
        parts = [
            *([f"{significant(sums['arrivals'] / span_s)} asked"] if is_open else []),
            f"{significant(sums['completed'] / span_s)} answered per second",
            *(f"{name} {significant(value)} ms" for name, value in slowest.items() if value),
            *([f"{sums['open']} open"] if is_open else []),
            f"{self._errors.total() - self._errors[UNANSWERED]} errors",
            *([f"{self._errors[UNANSWERED]} unanswered"] if self._errors[UNANSWERED] else []),
        ]
        return f"{phase['name']}: {', '.join(parts)}; {left_s:.0f} s left"


class LoadView(LaunchView):
    """Live view of a launch with the last second of the load."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = LoadProgress([])
        self._next_line, self._lines_shown = 0.0, 0

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """Follow the window files of these processes."""
        super().started(processes)
        self._progress = LoadProgress([process.folder / WINDOWS_NAME for process in processes])

    def details(self) -> list[str]:
        """Line of the load."""
        text = self._progress.text()
        return [] if text is None else [text]

    def times(self) -> tuple[float, float] | None:
        """Seconds passed and expected of the load."""
        return self._progress.times()

    def _draw(self, ending: bool) -> None:
        if not (self._console.is_terminal or self._stage or ending):
            text = self._progress.text()
            if text is not None and time.monotonic() >= self._next_line:
                self._lines_shown += 1
                self._next_line = time.monotonic() + LINE_S * 2 ** (self._lines_shown // MANY_LINES)
                self._add_line(text)
        super()._draw(ending)
