"""Whether a thread runs perfharness's own code: annotated functions that it calls then are not recorded.

Functions of the standard library may be annotated that the recorder calls while it makes, enters or leaves a range:
without this such a call would be recorded as the script's, and might recurse.
"""

from __future__ import annotations

import threading


class ThreadState:
    """A context, around perfharness's own code in one thread. `busy`: how many are entered."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = 0

    def __enter__(self) -> None:
        self.busy += 1

    def __exit__(self, *exception: object) -> None:
        self.busy -= 1


class _OwnWork(threading.local):
    """`thread`: the calling thread's state."""

    def __init__(self) -> None:
        self.thread = ThreadState()


own_work = _OwnWork()
