"""Progress of long work: a bar with the time left on a terminal, one line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from perfharness.progress import listening
from perfharness.render.console import Console, say
from perfharness.render.numbers import duration

BAR_WIDTH = 30


def bar_of(console: Console, *more: ProgressColumn) -> Progress:
    """Progress bar with description, `more`, and time left; shown on a terminal only."""
    text, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}")
    disable = not console.is_terminal or console.quiet
    return Progress(text, BarColumn(BAR_WIDTH), *more, left, console=console, transient=True, disable=disable)


class Steps:
    """Progress display; also a listener of `perfharness.progress`."""

    def __init__(self, console: Console) -> None:
        self._console, self._begin_s = console, time.monotonic()
        self._step_s = self._begin_s
        self.bar = bar_of(console)
        self._task = self.bar.add_task("", total=None, left="")

    def __call__(self, step: str, done: int, total: int) -> None:
        """Begin one of several steps."""
        self.begin(f"{step} ({done + 1} of {total})" if total > 1 else step)
        if total > 1:
            self.bar.update(self._task, completed=done, total=total, left=time_left(self._begin_s, done, total))

    def begin(self, step: str) -> None:
        """Begin a step of unknown length."""
        self._step_s = time.monotonic()
        self.bar.reset(self._task, description=step, total=None, left="")
        if not self._console.is_terminal:
            say(self._console, f"[{self._step_s - self._begin_s:6.1f} s] {step}")

    def advance(self, done: int, total: int) -> None:
        """Update the bar of the step."""
        self.bar.update(self._task, completed=done, total=total, left=time_left(self._step_s, done, total))


@contextmanager
def steps(console: Console, first: str = "") -> Iterator[Steps]:
    """Show the steps of the work in this block.

    Args:
        first: name of the first step, if the work does not name it.
    """
    shown = Steps(console)
    with shown.bar, listening(shown):
        if first:
            shown.begin(first)
        yield shown


def bar(done_s: float, total_s: float) -> Table:
    """Bar and time left."""
    grid = Table.grid(padding=(0, 1))
    left = duration(max(total_s - done_s, 0.0))
    grid.add_row(ProgressBar(total=total_s, completed=min(done_s, total_s), width=BAR_WIDTH), f"{left} left")
    return grid


def time_left(begin_s: float, done: int, total: int) -> str:
    """Return `40 s left`, extrapolated from the finished parts; empty before the first one has finished."""
    if not 0 < done < total:
        return ""
    return f"{duration((time.monotonic() - begin_s) / done * (total - done))} left"
