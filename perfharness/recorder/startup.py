"""Start-up times for `recorder.json`, in UTC nanoseconds: ranges, first recorder, first batch."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from perfharness.model.conventions import STARTUP_DOMAIN

_pid = os.getpid()
_first: dict[str, int] = {}
_ranges: list[dict[str, Any]] = []


def note(moment: str) -> None:
    """Note the time of the first `recorder` or `batch`."""
    _first.setdefault(moment, time.time_ns())


def to_json() -> dict[str, Any] | None:
    """Return the JSON object, or None in a forked child."""
    if _pid != os.getpid():
        return None
    return {**{f"first_{moment}_unix_ns": _first.get(moment) for moment in ("recorder", "batch")}, "ranges": _ranges}


@contextlib.contextmanager
def timed_range(name: str) -> Iterator[None]:
    """Time a part of the start-up, as an NVTX range in a separate domain."""
    annotation: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    with contextlib.suppress(ImportError):  # the recorder warns about it
        import nvtx

        annotation = nvtx.annotate(name, domain=STARTUP_DOMAIN)
    begin_unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
    entry = {"name": name, "begin_unix_ns": begin_unix_ns, "thread": threading.get_native_id(), "failed": True}
    try:
        with annotation:
            yield
        entry["failed"] = False
    finally:
        _ranges.append({**entry, "duration_ns": time.perf_counter_ns() - begin_ns})
