"""How far a suite or a sweep is: a bar with the time left on a terminal, a line per case elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from perfharness.analysis.bench_figures import (
    in_significant_digits,
)
from perfharness.analysis.bench_names import CaseNames
from perfharness.bench.suite.case_run import BenchObserver
from perfharness.bench.suite.matrix import PlannedCase
from perfharness.model.bench import BenchCase, CaseResult
from perfharness.render.terminal.bench_format import (
    first_line,
    status_line,
)
from perfharness.render.terminal.console import Console

SHOWN_AGAIN = 5


def time_left_s(order: Sequence[BenchCase], done: Sequence[CaseResult], running_s: float | None) -> float | None:
    """Seconds until all of `order` are done, estimated from the durations of those that are done; None without any.

    A case that is still to come takes what cases of its backend took on average, else what all took.

    Args:
        order: of this run, those that are done at the front; then the one that runs.
        done: also of an earlier run.
        running_s: for how long the one that runs has been running; None: none does.
    """
    taken: dict[str, list[float]] = {}
    for result in done:
        if result.duration_s is not None:
            taken.setdefault(result.case.backend, []).append(result.duration_s)
    every = [duration for durations in taken.values() for duration in durations]
    if not every:
        return None
    finished = {result.case.case_id for result in done}
    left = 0.0
    for position, case in enumerate(case for case in order if case.case_id not in finished):
        own = taken.get(case.backend, every)
        expected = sum(own) / len(own)
        left += max(0.0, expected - running_s) if position == 0 and running_s is not None else expected
    return left


class _Lines(BenchObserver):
    """Progress lines that a suite and a sweep share."""

    def __init__(self, console: Console) -> None:
        self._console, self._interrupts_reported = console, 0

    def poll(self, interrupts: int) -> None:
        """Report an interrupt."""
        if interrupts > self._interrupts_reported:
            self._interrupts_reported = interrupts
            self.say("ending this case; what is done is kept")

    def say(self, line: str) -> None:
        """As it is, above a bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class SweepProgress(_Lines):
    """A line per case, with the terms of the sweep's table."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._names = CaseNames()

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
    """A bar with the time left, and a line per case. Use as a context manager."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._clock = clock
        self._order: list[BenchCase] = []
        self._done: list[CaseResult] = []
        self._count = 0
        self._started_at: float | None = None
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            _Left(self._left),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> SuiteProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, order: Sequence[PlannedCase], kept: Sequence[CaseResult], again: Mapping[str, str]) -> None:
        """Print what is kept and what is run again, and why."""
        self._order = [one.case for one in order]
        self._done = list(kept)
        if kept:
            self.say(f"kept of an earlier run: {len(kept)} of {len(kept) + len(order)} cases")
        for case_id, why in list(again.items())[:SHOWN_AGAIN]:
            self.say(f"again: {case_id}: {first_line(why)}")
        if len(again) > SHOWN_AGAIN:
            self.say(f"again: {len(again) - SHOWN_AGAIN} more")
        self._bar.update(self._task, total=len(order), completed=0)

    def started(self, case: BenchCase, what: str) -> None:
        """Show it in the bar."""
        self._started_at = self._clock() if what == "measured" else None
        self._bar.update(self._task, description=case.case_id if what == "measured" else f"{case.case_id}: {what}")

    def done(self, result: CaseResult, *, is_kept: bool = False) -> None:
        """A line, and the bar goes on."""
        del is_kept
        self._count += 1
        self._started_at = None
        self._done.append(result)
        left = self._left()
        self.say(
            f"[{self._count}/{len(self._order)}] {_one_line(result)}"
            + ("" if left is None or self._console.is_terminal or not left else f" ({format_duration(left)} left)")
        )
        self._bar.update(self._task, completed=self._count)

    def _left(self) -> float | None:
        running_s = None if self._started_at is None else self._clock() - self._started_at
        return time_left_s(self._order, self._done, running_s)


class _Left(ProgressColumn):
    """The estimated time left: cases differ too much for one speed."""

    def __init__(self, left: Callable[[], float | None]) -> None:
        super().__init__()
        self._of = left

    def render(self, _task: Task) -> Text:
        """`12 min left`."""
        left = self._of()
        return Text("" if left is None else f"{format_duration(left)} left")


def _one_line(result: CaseResult) -> str:
    if result.status != "ok":
        return f"{result.case.case_id}: {result.status}: {first_line(result.reason or '')}"
    latency = result.latency.median if result.latency is not None else None
    return (
        f"{result.case.case_id}: {in_significant_digits(latency)} ms,"
        f" {in_significant_digits(result.items_per_second)} items/s"
    )


def format_duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
