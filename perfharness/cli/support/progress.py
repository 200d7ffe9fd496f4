"""How far long work is: a bar with the time left on a terminal, one line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from perfharness.progress import listening
from perfharness.render.console import Console, say
from perfharness.render.numbers import duration

BAR_WIDTH = 30


class Steps:
    """Shows the steps of one piece of work, as a listener of `perfharness.progress`, or by its own methods.

    Args:
        console: where they are shown; one that is quiet shows nothing.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._begin_s = console, time.monotonic()
        self._step_s = self._begin_s
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal or console.quiet)
        self._task = self.bar.add_task("", total=None, left="")

    def __call__(self, step: str, done: int, total: int) -> None:
        """Begin a step, of several."""
        self.begin(f"{step} ({done + 1} of {total})" if total > 1 else step)
        if total > 1:
            self.bar.update(self._task, completed=done, total=total, left=time_left(self._begin_s, done, total))

    def begin(self, step: str) -> None:
        """Begin a step, whose length is not known."""
        self._step_s = time.monotonic()
        self.bar.reset(self._task, description=step, total=None, left="")
        if not self._console.is_terminal:
            say(self._console, f"[{self._step_s - self._begin_s:6.1f} s] {step}")

    def advance(self, done: int, total: int) -> None:
        """Note how much of the step is done."""
        self.bar.update(self._task, completed=done, total=total, left=time_left(self._step_s, done, total))


@contextmanager
def steps(console: Console, first: str = "") -> Iterator[Steps]:
    """Show the steps of the work of this block.

    Args:
        first: name of the first one; empty: the work names it.
    """
    shown = Steps(console)
    with shown.bar, listening(shown):
        if first:
            shown.begin(first)
        yield shown


def bar(done_s: float, total_s: float) -> Table:
    """A bar, and the time left."""
    grid = Table.grid(padding=(0, 1))
    left = duration(max(total_s - done_s, 0.0))
    grid.add_row(ProgressBar(total=total_s, completed=min(done_s, total_s), width=BAR_WIDTH), f"{left} left")
    return grid


def time_left(begin_s: float, done: int, total: int) -> str:
    """`40 s left`, if each part takes as long as those that are done; empty before the first is."""
    if not 0 < done < total:
        return ""
    return f"{duration((time.monotonic() - begin_s) / done * (total - done))} left"
