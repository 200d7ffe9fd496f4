"""The running asyncio task and its stack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from perfharness.recorder.stacks import RangeStack

# Truthy while any thread runs a task. Until Python 3.13 it is asyncio's own table of the task that each loop runs: its
# truth value costs a tenth of asking for the running loop. Later versions hide the table; there it is always truthy.
running: Collection[object] = ()

_running_task: Callable[[], object | None] | None = None


def follow_asyncio() -> None:
    """Start following asyncio. Not done at import: importing asyncio takes 30 to 100 ms and imports ssl."""
    global _running_task, running
    if _running_task is not None:
        return
    import asyncio

    get_loop: Callable[[], Any] = asyncio._get_running_loop
    if sys.version_info < (3, 14):
        task_of_loop: dict[Any, Any] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
        running = task_of_loop

        def running_task() -> object | None:
            return task_of_loop.get(get_loop())  # without a loop: None, which is not a key
    else:
        running = ("perhaps",)

        def running_task() -> object | None:
            return None if get_loop() is None else asyncio.current_task()

    _running_task = running_task


def stack_of_task(own: RangeStack) -> RangeStack | None:
    """The stack of the running task, or None where it has nothing open; the thread's own where no task runs.

    No task runs in plain code, nor in a callback of the loop.
    """
    assert _running_task is not None, "a recorder has called follow_asyncio"
    task = _running_task()
    return own if task is None else own.thread.of_task.get(task)


def take_stack_of_task(own: RangeStack) -> RangeStack:
    """The same for a push: a task with nothing open gets a stack."""
    assert _running_task is not None, "a recorder has called follow_asyncio"
    task = _running_task()
    if task is None:
        return own
    thread = own.thread
    return thread.of_task.get(task) or thread.take_lane(task)
