"""Which asyncio task is running, and the stack that it has.

asyncio takes 30 to 100 ms to import and drags in ssl. Where nobody imported it no loop runs, so callers look at
`sys.modules` first, and nothing here imports it on its own account.
"""

from __future__ import annotations

from perfharness.recorder.stacks import RangeStack


def running_loop() -> object | None:
    """The thread's running event loop. The first call puts asyncio's own function in the place of this one."""
    from asyncio.events import _get_running_loop

    globals()["running_loop"] = _get_running_loop
    return _get_running_loop()


def stack_of_task(own: RangeStack, *, take_lane: bool) -> RangeStack:
    """The stack of the running task; in a callback of the loop, which no task runs, the thread's own.

    A task with nothing open has no stack: it takes one with `take_lane`, and otherwise gets one with nothing on it.
    """
    from asyncio import current_task

    task = current_task()
    if task is None:
        return own
    thread = own.thread
    stack = thread.of_task.get(task)
    if stack is not None:
        return stack
    return thread.take_lane(task) if take_lane else RangeStack(thread, 0)
