"""Several readers of one trace at a time: a file is read as fast as one core can by each."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from perfharness.trace.open_source import open_source
from perfharness.trace.source import TraceSource

READERS = 2
"""More do not help where NumPy works on what was read at the same time."""

AHEAD = 4
"""Answers that wait, at most, for the one who asked."""

_Answer = TypeVar("_Answer")


class Readers:
    """Threads that each have the trace open for themselves. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(max_workers=READERS)
        self._own = threading.local()
        self._opened = ExitStack()
        self._opening = threading.Lock()

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._opened.close()
        give_memory_back()

    def map(self, tasks: Iterable[Callable[[TraceSource], _Answer]]) -> Iterator[_Answer]:
        """The answers of all tasks in their order; begins before the first one is asked for."""
        waiting = iter(tasks)
        pending: deque[Future[_Answer]] = deque()
        self._submit(waiting, pending, READERS + AHEAD)
        return self._answers(waiting, pending)

    def _answers(
        self, waiting: Iterator[Callable[[TraceSource], _Answer]], pending: deque[Future[_Answer]]
    ) -> Iterator[_Answer]:
        while pending:
            answer = pending.popleft().result()
            self._submit(waiting, pending, 1)
            yield answer

    def _submit(
        self,
        waiting: Iterator[Callable[[TraceSource], _Answer]],
        pending: deque[Future[_Answer]],
        count: int,
    ) -> None:
        for task in waiting:
            pending.append(self._pool.submit(self._ask, task))
            count -= 1
            if not count:
                return

    def _ask(self, task: Callable[[TraceSource], _Answer]) -> _Answer:
        source: TraceSource | None = getattr(self._own, "source", None)
        if source is None:
            source = open_source(self._path)
            with self._opening:
                self._own.source = self._opened.enter_context(source)
        return task(source)


def give_memory_back() -> None:
    """Return what was freed to the system: what threads that have ended freed would stay in their arenas (glibc)."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
