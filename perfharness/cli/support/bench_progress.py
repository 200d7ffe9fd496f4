"""How far a suite or a sweep is: a bar on a terminal, a line per case with the time left."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from perfharness.analysis.suites.bench_figures import in_significant_digits
from perfharness.analysis.suites.bench_names import CaseNames
from perfharness.bench.suite.case_run import BenchObserver
from perfharness.bench.suite.matrix import PlannedCase
from perfharness.model.bench import BenchCase, CaseResult
from perfharness.render.console import Console, say
from perfharness.render.terminal.bench import first_line, status_line

SHOWN_AGAIN = 5


class _Lines(BenchObserver):
    """Progress lines that a suite and a sweep share."""

    def __init__(self, console: Console) -> None:
        self._console, self._interrupts_reported = console, 0

    def poll(self, interrupts: int) -> None:
        if interrupts > self._interrupts_reported:
            self._interrupts_reported = interrupts
            self.say("ending this case; what is done is kept")

    def say(self, line: str) -> None:
        say(self._console, line)


class SweepProgress(_Lines):
    """A line per case, with the terms of the sweep's table."""

    _names = CaseNames()

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult], again: Mapping[str, str]) -> None:
        """The shortest names that distinguish these cells."""
        del kept, again
        self._names = CaseNames.of(cell.case for cell in order)

    def again(self, case: BenchCase, why: str) -> None:
        """Why it is not kept."""
        self.say(f"again: {self._names.case(case)}: {first_line(why)}")

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        """Its median, or why there is none."""
        median = None if result.latency is None else result.latency.median
        found = status_line(result) or f"{in_significant_digits(median)} ms"
        self.say(f"{self._names.case(result.case)}: {found}{' (kept of an earlier run)' if is_kept else ''}")


class SuiteProgress(_Lines):
    """A bar, and a line per case with the time left: at the mean time of those measured. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._count, self._done = 0, 0
        self._durations_s: list[float] = []
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=30), MofNCompleteColumn(),
                   TextColumn("{task.fields[left]}"))  # fmt: skip
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None, left="")

    def __enter__(self) -> SuiteProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult], again: Mapping[str, str]) -> None:
        """Print what is kept and what is run again, and why."""
        self._count = len(order)
        self._durations_s = [result.duration_s for result in kept if result.duration_s is not None]
        if kept:
            self.say(f"kept of an earlier run: {len(kept)} of {len(kept) + len(order)} cases")
        for case_id, why in list(again.items())[:SHOWN_AGAIN]:
            self.say(f"again: {case_id}: {first_line(why)}")
        if len(again) > SHOWN_AGAIN:
            self.say(f"again: {len(again) - SHOWN_AGAIN} more")
        self._bar.update(self._task, total=len(order), completed=0)

    def started(self, case: BenchCase, what: str) -> None:
        """Show it in the bar."""
        self._bar.update(self._task, description=case.case_id if what == "measured" else f"{case.case_id}: {what}")

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        """A line, and the bar goes on."""
        del is_kept
        self._done += 1
        self._durations_s += [result.duration_s] if result.duration_s is not None else []
        rest = self._count - self._done if self._durations_s else 0
        left = f"{format_duration(rest * statistics.mean(self._durations_s))} left" if rest else ""
        self._bar.update(self._task, completed=self._done, left=left)
        found = status_line(result)
        if found is None:
            median = result.latency.median if result.latency is not None else None
            rate = in_significant_digits(result.items_per_second)
            found = f"{in_significant_digits(median)} ms, {rate} items/s"
        line = f"[{self._done}/{self._count}] {result.case.case_id}: {found}"
        self.say(f"{line} ({left})" if left and not self._console.is_terminal else line)


def format_duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
