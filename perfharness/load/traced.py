"""Begin of each request's service, from the trace of the server; separates queueing and service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.analysis.timeline.clock import monotonic_offset
from perfharness.load.middleware import REQUEST_RANGE
from perfharness.load.record import moments
from perfharness.model.findings import Finding, Severity
from perfharness.runs.run import open_run

UNTIED_NS = 1_000_000
"""Minimum time by which a service begins before its request is sent to show that the clocks differ."""


def with_begun(requests: pa.Table, begun_ns: dict[int, int], error_ns: int) -> tuple[pa.Table, list[Finding]]:
    """The rows with `begun_ns` for all requests in the server's trace, and findings on missing ones.

    Args:
        begun_ns: when the batch of each request began, by its id, monotonic; error up to `error_ns`.
    """
    if not begun_ns:
        found = Finding(
            "requests-not-joined",
            Severity.NOTE,
            "Queueing and service cannot be separated: the server's trace has no requests.",
            "perfharness.load.middleware makes each request of a load a batch (ASGI and WSGI).",
        )
        return requests, [found]
    begun = np.array([begun_ns.get(number, 0) for number in requests["id"].to_pylist()], np.int64)
    sent = requests["sent_ns"].fill_null(0).to_numpy()
    early = (begun > 0) & (begun < sent - UNTIED_NS - error_ns)
    if early.any():
        found = Finding(
            "requests-not-joined",
            Severity.WARNING,
            f"{early.sum()} services begin before their requests are sent: the clocks of server and generator differ.",
            "Run both on one machine",
        )
        return requests, [found]
    place = requests.schema.get_field_index("begun_ns")
    requests = requests.set_column(place, "begun_ns", moments(begun))
    is_well = pc.is_null(requests["error"]).to_numpy()
    untraced = int((is_well & (begun == 0)).sum())
    if not untraced:
        return requests, []
    text = f"The server's trace lacks {untraced} of {is_well.sum()} requests; queueing and service exclude these."
    hint = "Put the middleware into each process of the server, and end the server by SIGINT or SIGTERM"
    return requests, [Finding("requests-not-joined", Severity.WARNING, text, hint)]


def begun_in(folder: Path) -> tuple[dict[int, int], int]:
    """When the batch of each request began, monotonic, by its id; and the error of these times."""
    found: dict[int, int] = {}
    error_ns = 0
    for process in open_run(folder).processes:
        analysis = process.analysis
        offset = None if analysis is None else monotonic_offset(analysis.trace)
        if offset is not None:
            batches = process.table("batches")
            is_request = pc.match_substring_regex(pc.cast(batches["path"], pa.string()), f"(^|/){REQUEST_RANGE}$")
            requests = batches.filter(is_request)
            begun = pc.add(requests["start_ns"], offset[0])
            found |= zip(requests["batch_index"].to_pylist(), begun.to_pylist(), strict=True)
            error_ns = max(error_ns, offset[1])
        process.release()
    return found, error_ns
