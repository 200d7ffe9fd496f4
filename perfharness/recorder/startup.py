"""The start-up: its ranges, and the times of the first recorder and the first batch.

`recorder.json` has them on the machine's clock, so that they can be compared with the time at which the launch started
the process, with or without a trace. In a trace they are NVTX ranges of a separate domain, outside of the results.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from perfharness.model.conventions import STARTUP_DOMAIN
from perfharness.recorder.checks import check_name

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

F = TypeVar("F", bound=Callable[..., Any])


class Startup:
    """The start-up of one process; times are UTC nanoseconds."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.first_recorder_unix_ns: int | None = None
        self.first_batch_unix_ns: int | None = None
        self.ranges: list[dict[str, Any]] = []

    def to_json(self) -> dict[str, Any] | None:
        """The object in `recorder.json`; None in a forked child, whose start-up was its parent's."""
        if self.pid != os.getpid():
            return None
        return {
            "first_recorder_unix_ns": self.first_recorder_unix_ns,
            "first_batch_unix_ns": self.first_batch_unix_ns,
            "ranges": self.ranges,
        }


process_startup = Startup()


def note_recorder() -> None:
    """Note the time of the first recorder."""
    if process_startup.first_recorder_unix_ns is None:
        process_startup.first_recorder_unix_ns = time.time_ns()


def note_batch() -> None:
    """Note the time of the first batch; called when a batch with a new key begins."""
    if process_startup.first_batch_unix_ns is None:
        process_startup.first_batch_unix_ns = time.time_ns()


class StartupRange:
    """A part of the start-up, as a `with` block or a decorator.

    Args:
        name: name in the results, which have separate fields for `model_load` and `cuda_context`.
    """

    def __init__(self, name: str) -> None:
        check_name("start-up range", name)
        self._name = name
        self._open: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        _push(self._name)
        self._open.append((time.time_ns(), time.perf_counter_ns()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begin_unix_ns, begin_ns = self._open.pop()
        process_startup.ranges.append(
            {
                "name": self._name,
                "begin_unix_ns": begin_unix_ns,
                "duration_ns": time.perf_counter_ns() - begin_ns,
                "thread": threading.get_native_id(),
                "failed": kind is not None,
            }
        )
        _pop()

    def __call__(self, function: F) -> F:
        """The function with each call as such a range."""
        name = self._name

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with StartupRange(name):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


def _push(name: str) -> None:
    try:
        import nvtx
    except ImportError:
        return  # the recorder warns about it
    nvtx.push_range(name, domain=STARTUP_DOMAIN)


def _pop() -> None:
    try:
        import nvtx
    except ImportError:
        return
    nvtx.pop_range(domain=STARTUP_DOMAIN)
