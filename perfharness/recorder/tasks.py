"""The running asyncio task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

running: Collection[object] = ()
"""True while any thread runs a task. Until Python 3.13 it is asyncio's own table of the task that each loop runs, whose
truth value costs a tenth of asking for the running loop; later versions hide the table, so there it is always true."""

_current: Callable[[], object | None] | None = None


def follow_asyncio() -> Collection[object]:
    """Import asyncio, which takes 30 to 100 ms, and return `running`."""
    global _current, running
    if _current is None:
        import asyncio

        get_loop: Callable[[], Any] = asyncio._get_running_loop
        if sys.version_info < (3, 14):
            task_of_loop: dict[Any, object] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
            running = task_of_loop

            def current() -> object | None:
                return task_of_loop.get(get_loop())  # without a loop: None, which is not a key
        else:
            running = ("perhaps",)

            def current() -> object | None:
                return None if get_loop() is None else asyncio.current_task()

        _current = current
    return running


def current() -> object | None:
    """Return the running task; None in plain code and in callbacks of the loop."""
    assert _current is not None, "a recorder has called follow_asyncio"
    return _current()
