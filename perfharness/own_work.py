"""Whether a thread is at work for perfharness itself: what it calls then, annotated or not, is no call of the script's.

A script may have functions of the standard library annotated that the recorder calls while a range is made, entered or
left: that call would be a range that the script did not make, and might make the next.
"""

from __future__ import annotations

import threading


class OfThread:
    """Whether one thread is."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False


class _OwnWork(threading.local):
    """`thread`: the calling thread's."""

    def __init__(self) -> None:
        self.thread = OfThread()


own_work = _OwnWork()
