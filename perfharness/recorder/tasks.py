"""The running asyncio task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import cache
from typing import Any


@cache
def follow_asyncio() -> tuple[Collection[object], Callable[[], object | None]]:
    """Import asyncio (30 to 100 ms).

    Returns a collection that is true while any thread runs a task, and a function that returns the running task, or
    None in plain code and callbacks of the loop. Until Python 3.13 the collection is asyncio's table of running tasks:
    its truth value takes a tenth of the time of a look-up. Later versions hide the table; there it is always true.
    """
    import asyncio

    get_loop: Callable[[], Any] = asyncio._get_running_loop
    if sys.version_info >= (3, 14):
        return ("perhaps",), lambda: None if get_loop() is None else asyncio.current_task()
    task_of_loop: dict[Any, object] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    return task_of_loop, lambda: task_of_loop.get(get_loop())
