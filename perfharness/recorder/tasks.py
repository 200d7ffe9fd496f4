"""The running asyncio task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import cache
from typing import Any


@cache
def follow_asyncio() -> tuple[Collection[object], Callable[[], object | None]]:
    """Import asyncio, which takes 30 to 100 ms; return what is true while any thread runs a task, and what finds it.

    Until Python 3.13 the former is asyncio's own table of the task that each loop runs, whose truth value costs a tenth
    of asking for the running loop. Later versions hide the table, so there it is always true. No task is found in plain
    code and in callbacks of the loop.
    """
    import asyncio

    get_loop: Callable[[], Any] = asyncio._get_running_loop
    if sys.version_info >= (3, 14):
        return ("perhaps",), lambda: None if get_loop() is None else asyncio.current_task()
    task_of_loop: dict[Any, object] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    return task_of_loop, lambda: task_of_loop.get(get_loop())  # without a loop: None, which is not a key
