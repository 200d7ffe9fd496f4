"""The running asyncio task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

_current: Callable[[], object | None] | None = None
_running: Collection[object] = ()


def follow_asyncio() -> Collection[object]:
    """Import asyncio, which takes 30 to 100 ms; return what is true while any thread runs a task.

    Until Python 3.13 it is asyncio's own table of the task that each loop runs, whose truth value costs a tenth of
    asking for the running loop. Later versions hide the table, so there it is always true.
    """
    global _current, _running
    if _current is None:
        import asyncio

        get_loop: Callable[[], Any] = asyncio._get_running_loop
        if sys.version_info < (3, 14):
            task_of_loop: dict[Any, object] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
            _running = task_of_loop

            def find() -> object | None:
                return task_of_loop.get(get_loop())  # without a loop: None, which is not a key
        else:
            _running = ("perhaps",)

            def find() -> object | None:
                return None if get_loop() is None else asyncio.current_task()

        _current = find
    return _running


def current() -> object | None:
    """Return the running task; None in plain code and in callbacks of the loop."""
    assert _current is not None, "a recorder has called follow_asyncio"
    return _current()
