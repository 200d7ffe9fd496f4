"""Each query of a test as a row of `requests.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfharness.load.mlperf.logs import Scheduled
from perfharness.load.mlperf.sut import Requests
from perfharness.load.requests import RequestTable
from perfharness.load.windows import NEVER_NS, Done

PHASE = "performance"
"""Of all queries: what LoadGen calls its mode."""

CHUNK = 100_000
"""Rows that are made at a time."""


def write_queries(folder: Path, queries: Requests, intended_ns: Mapping[int, int] | None) -> None:
    """Write the file. Raises `OSError`.

    Args:
        intended_ns: when each query was scheduled, by its number; None: when it was sent, as in scenarios that wait for
            the answer before the next query.
    """
    table, count = RequestTable(), len(queries.sent_ns)
    for first in range(0, count, CHUNK):
        numbers = range(first, min(first + CHUNK, count))
        table.add(PHASE, [_row(queries, number, intended_ns) for number in numbers])
    table.write(folder)


def _row(queries: Requests, number: int, intended_ns: Mapping[int, int] | None) -> Done:
    sent_ns = queries.sent_ns[number]
    return Done(
        id=number,
        input=None,
        items=queries.items[number],
        intended_ns=sent_ns if intended_ns is None else intended_ns.get(number, NEVER_NS),
        ready_ns=NEVER_NS,
        sent_ns=sent_ns,
        begun_ns=queries.begun_ns[number],
        done_ns=queries.done_ns[number],
        error=queries.errors.get(number),
    )


def intended_ns(scheduled: Scheduled, sent_ns: npt.NDArray[np.int64]) -> dict[int, int]:
    """When each query was scheduled, by its number, on the monotonic clock.

    LoadGen's clock has another origin; a query reaches us a little after it was issued, the fastest of them almost at
    once, and that difference is taken as the origin.
    """
    known = scheduled.queries < len(sent_ns)
    queries, at_ns = scheduled.queries[known], scheduled.at_ns[known]
    if not len(queries):
        return {}
    origin = int((sent_ns[queries] - at_ns - scheduled.issued_ns[known]).min())
    return dict(zip(queries.tolist(), (at_ns + origin).tolist(), strict=True))
