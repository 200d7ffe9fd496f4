"""When the service of each request began, by the trace of the server: queueing and service apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfharness.analysis.timeline.clock import monotonic_offset
from perfharness.load.histogram import Histogram, Ints
from perfharness.load.middleware import REQUEST_RANGE
from perfharness.load.result import times_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.load import REQUESTS_NAME, LoadResult, LoadTimes, PhaseResult
from perfharness.runs.run import open_run

UNTIED_NS = 1_000_000
"""A service that begins that much before its request is sent: the clocks of server and generator are not tied."""


def with_service(result: LoadResult, folder: Path, process: str) -> LoadResult:
    """The result with queueing and service of each phase, as far as the server's trace has the requests.

    `begun_ns` of `requests.parquet` is filled in.

    Args:
        folder: of the run.
        process: folder of the server, in it.
    """
    path = folder / process / REQUESTS_NAME
    if not path.is_file():  # the generator was killed
        return result
    requests = pq.read_table(path)
    begun_ns, error_ns = _begun(folder)
    if not begun_ns:
        found = Finding(
            "requests-not-traced",
            Severity.NOTE,
            "The server's trace has no requests, so how long they waited and were served is not known apart.",
            "perfharness.load.middleware makes each request of a load a batch (ASGI and WSGI).",
        )
        return _noted(result, found)
    begun = np.array([begun_ns.get(number, 0) for number in requests["id"].to_pylist()], np.int64)
    sent = requests["sent_ns"].fill_null(0).to_numpy()
    early = (begun > 0) & (begun < sent - UNTIED_NS - error_ns)
    if early.any():
        found = Finding(
            "requests-clock-untied",
            Severity.WARNING,
            f"{early.sum()} services begin before their requests are sent, so clocks of server and generator differ.",
            "Run both on one machine",
        )
        return _noted(result, found)
    column = pa.array(begun, mask=begun == 0)
    place = requests.schema.get_field_index("begun_ns")
    requests = requests.set_column(place, "begun_ns", column)
    pq.write_table(requests, path, compression="zstd")
    is_well = pc.is_null(requests["error"]).to_numpy()
    if untraced := int((is_well & (begun == 0)).sum()):
        text = (
            f"The server's trace lacks {untraced} of {is_well.sum()} requests; queueing and service are of the others."
        )
        hint = "each process of the server needs the middleware, and has to end by SIGINT or SIGTERM"
        result = _noted(result, Finding("requests-partly-traced", Severity.WARNING, text, hint))
    if result.requests_kept is not None:
        return result  # a sample that has all of the slowest is no distribution
    phases = [_with_times(phase, requests) for phase in result.phases]
    return result.model_copy(update={"phases": phases})


def _begun(folder: Path) -> tuple[dict[int, int], int]:
    """When the batch of each request began, by its id, on the monotonic clock; and by how much that may be off."""
    found: dict[int, int] = {}
    error_ns = 0
    for process in open_run(folder).processes:
        analysis = process.analysis
        offset = None if analysis is None else monotonic_offset(analysis.trace)
        if offset is not None:
            batches = process.table("batches")
            names = pc.cast(batches["path"], pa.string()).to_pylist()
            for name, number, start in zip(
                names, batches["batch_index"].to_pylist(), batches["start_ns"].to_pylist(), strict=True
            ):
                if name.rpartition("/")[2] == REQUEST_RANGE:
                    found[number] = start + offset[0]
            error_ns = max(error_ns, offset[1])
        process.release()
    return found, error_ns


def _with_times(phase: PhaseResult, requests: pa.Table) -> PhaseResult:
    is_well = pc.and_(pc.equal(requests["phase"], phase.name), pc.is_null(requests["error"]))
    rows = requests.filter(pc.and_(is_well, pc.is_valid(requests["begun_ns"])))
    intended, begun, done = (rows[name].to_numpy() for name in ("intended_ns", "begun_ns", "done_ns"))
    queueing = _times(begun - intended, phase.latency.slower if len(rows) else 0)
    return phase.model_copy(update={"queueing": queueing, "service": _times(done - begun)})


def _times(values: Ints, slower: int = 0) -> LoadTimes:
    histogram = Histogram()
    histogram.add(values)
    return times_of(histogram, slower, "the server's trace has no request of this phase")


def _noted(result: LoadResult, finding: Finding) -> LoadResult:
    return result.model_copy(update={"findings": [*result.findings, finding]})
