"""How far long work is: a bar with the time left on a terminal, one line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from perfharness.render.console import Console, say


class Steps:
    """The steps of one piece of work.

    Args:
        console: where it is shown; one that is quiet shows nothing.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._begin_s = console, time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.quiet,
        )
        self._task = self.bar.add_task("", total=None)

    def say(self, text: str) -> None:
        """Begin a step of unknown length."""
        self.bar.reset(self._task, description=text, total=None)
        if not self._console.is_terminal:
            say(self._console, f"[{time.monotonic() - self._begin_s:6.1f} s] {text}")

    def advance(self, done: int, total: int) -> None:
        """Note how much of the step is done."""
        self.bar.update(self._task, completed=done, total=total)


@contextmanager
def steps(console: Console, text: str) -> Iterator[Steps]:
    """Show the steps of long work, of which this is the first."""
    shown = Steps(console)
    with shown.bar:
        shown.say(text)
        yield shown
