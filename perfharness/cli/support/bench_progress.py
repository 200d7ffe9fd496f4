"""Progress of a suite: one line per case with the time left, and a bar on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.progress import MofNCompleteColumn

from perfharness.analysis.suites.bench_names import CaseNames, first_line, status_line
from perfharness.bench.plan import PlannedCase
from perfharness.bench.run import BenchObserver
from perfharness.cli.support.progress import bar_of
from perfharness.model.bench import BenchCase, CaseResult, Estimate
from perfharness.render.console import Console, say
from perfharness.render.numbers import duration, number


class BenchProgress(BenchObserver):
    """Progress display, a context manager. The time left assumes the mean time of the cases so far.

    Args:
        is_search: the number of cases is unknown.
    """

    def __init__(self, console: Console, *, is_search: bool) -> None:
        self._console, self._is_search = console, is_search
        self._count, self._done, self._interrupts_reported = 0, 0, 0
        self._names = CaseNames()
        self._durations_s: list[float] = []
        self._bar = bar_of(console, MofNCompleteColumn())
        self._bar.disable = self._bar.disable or is_search
        self._task = self._bar.add_task("starting", total=None, left="")

    def __enter__(self) -> BenchProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def poll(self, interrupts: int) -> None:
        """Report an interrupt."""
        if interrupts > self._interrupts_reported:
            self._interrupts_reported = interrupts
            self.say("Stopping this case; finished cases are kept.")

    def say(self, line: str) -> None:
        """Print a line."""
        say(self._console, line)

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult]) -> None:
        """Print how many cases are kept."""
        self._names = CaseNames.of(planned.case for planned in order)
        self._count = 0 if self._is_search else len(order)
        self._durations_s = [result.duration_s for result in kept if result.duration_s is not None]
        if kept:
            self.say(f"kept from an earlier run: {len(kept)} of {len(kept) + len(order)} cases")
        self._bar.update(self._task, total=len(order), completed=0)

    def again(self, case: BenchCase, why: str) -> None:
        """Print why a case is measured again."""
        self.say(f"again: {self._names.case(case)}: {first_line(why)}")

    def started(self, case: BenchCase) -> None:
        """Show the case in the bar."""
        self._bar.update(self._task, description=self._names.case(case))

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        """Print the case's result and advance the bar."""
        self._done += 1
        self._durations_s += [result.duration_s] if result.duration_s is not None else []
        rest = max(0, self._count - self._done) if self._durations_s else 0
        left = f"{duration(rest * statistics.mean(self._durations_s))} left" if rest else ""
        self._bar.update(self._task, completed=self._done, left=left)
        median = None if result.latency is None else result.latency.median
        found = status_line(result) or f"{_shown(median)} ms, {_shown(result.items_per_second)} items/s"
        count = f"[{self._done}/{self._count}] " if self._count else ""
        line = f"{count}{self._names.case(result.case)}: {found}{' (kept from an earlier run)' if is_kept else ''}"
        self.say(f"{line} ({left})" if left and not self._console.is_terminal else line)


def _shown(estimate: Estimate | None) -> str:
    return number(None if estimate is None else estimate.value)
