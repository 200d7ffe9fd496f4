"""Lines of the file of windows of a load test, as its workers write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.load.histogram import Histogram

S, MS = 1_000_000_000, 1_000_000
Line = dict[str, Any]


def hdr(values_ns: npt.ArrayLike = ()) -> dict[str, Any]:
    """The histogram of some times, as a line has it."""
    histogram = Histogram()
    histogram.add(np.round(np.asarray(values_ns, np.float64)).astype(np.int64))
    return histogram.to_json()


def began(seconds: float, start_ns: int = 0, workers: int = 1) -> list[Line]:
    """The first lines of a load of one phase."""
    end_ns = start_ns + round(seconds * S)
    phase = {"kind": "phase", "index": 0, "name": "load", "start_ns": start_ns, "end_ns": end_ns}
    return [{"kind": "run", "start_ns": start_ns}, phase | {"concurrency": workers}]


def window(index: int, latency_ns: npt.ArrayLike = (), start_ns: int = 0, /, **changes: Any) -> Line:
    """Second `index` of a phase that began then, with so many answers, all of them well; `changes` say otherwise."""
    count, begin_ns = np.size(latency_ns), start_ns + index * S
    return {
        "kind": "window",
        "phase": 0,
        "index": index,
        "start_ns": begin_ns,
        "end_ns": begin_ns + S,
        "last_done_ns": begin_ns + S if count else None,
        "arrivals": count,
        "sent": count,
        "completed": count,
        "ok": count,
        "within_objective": None,
        "items": count,
        "errors": {},
        "unanswered": 0,
        "first": [],
        "in_flight_max": 1,
        "rss_bytes": None,
        "latency": hdr(latency_ns),
        "queueing": hdr(),
        "service": hdr(),
        "lateness": hdr(),
        **changes,
    }


def ended(kept: str | None = None) -> Line:
    return {"kind": "end", "status": "ok", "reason": None, "requests_kept": kept}
