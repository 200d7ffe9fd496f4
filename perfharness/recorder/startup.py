"""The start-up: its ranges, and the times of the first recorder and the first batch.

`recorder.json` has them on the machine's clock, so that they can be compared with the time at which the launch started
the process, with or without a trace. In a trace they are NVTX ranges of a separate domain, outside of the results.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from perfharness.model.conventions import STARTUP_DOMAIN


class Startup:
    """The start-up of one process; times are UTC nanoseconds."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.first_recorder_unix_ns: int | None = None
        self.first_batch_unix_ns: int | None = None
        self.ranges: list[dict[str, Any]] = []

    def note(self, moment: str) -> None:
        """Note the time of the first `recorder` or `batch`."""
        name = f"first_{moment}_unix_ns"
        if getattr(self, name) is None:
            setattr(self, name, time.time_ns())

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


@contextlib.contextmanager
def timed_range(name: str) -> Iterator[None]:
    """A part of the start-up, as a `with` block or a decorator."""
    try:
        import nvtx
    except ImportError:
        annotation: contextlib.AbstractContextManager[object] = contextlib.nullcontext()  # the recorder warns about it
    else:
        annotation = nvtx.annotate(name, domain=STARTUP_DOMAIN)
    with annotation:
        begin_unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        failed = True
        try:
            yield
            failed = False
        finally:
            process_startup.ranges.append(
                {
                    "name": name,
                    "begin_unix_ns": begin_unix_ns,
                    "duration_ns": time.perf_counter_ns() - begin_ns,
                    "thread": threading.get_native_id(),
                    "failed": failed,
                }
            )
