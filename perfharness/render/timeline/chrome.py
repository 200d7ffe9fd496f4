"""Export of a run as a Chrome trace (docs/reference/results.md)."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from perfharness.distribution import VERSION
from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.findings import Finding, Severity
from perfharness.render.timeline.events import process_events
from perfharness.render.timeline.rows import Event, Ids
from perfharness.runs.run import Process, Run

CHUNK = 1000
"""Events per write; gzip is slow with small writes."""

COMPRESSION_LEVEL = 4
"""Higher levels take several times as long to save a few percent."""


def write_chrome_trace(run: Run, path: Path) -> list[Finding]:
    """Write the timeline of all processes, compressed if the name ends in `.gz`; return findings.

    Traces are read one at a time. One of several that cannot be read is skipped, with a finding.

    Raises:
        ResultError: no process left a trace, or the file cannot be written.
        TraceError: the only trace cannot be read.
    """
    traced = [process for process in run.processes if process.trace_path is not None]
    if not traced:
        raise ResultError(f"{run.path} has no trace; see its manifest.json and stderr.log files.")
    origin_ns, findings, processes = _origin(run, traced), run.launch_findings, dict[str, Any]()
    is_compressed = path.suffix == ".gz"
    with (
        replacing(path) as temporary,
        gzip.open(temporary, "wb", COMPRESSION_LEVEL) if is_compressed else temporary.open("wb") as file,
    ):
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        events, end = _events(run, len(traced), origin_ns, findings, processes), b""
        while chunk := list(islice(events, CHUNK)):
            file.write(end + b",\n".join(map(orjson.dumps, chunk)))
            end = b",\n"
        about = {
            "made_by": f"perfharness {VERSION}",
            # A string, because most JSON readers use doubles, which cannot hold nanoseconds since 1970.
            "time_origin_unix_ns": None if origin_ns is None else str(origin_ns),
            "processes": processes,
            "findings": [finding.to_json() for finding in findings],
        }
        file.write(b'\n],\n"otherData":' + orjson.dumps(about) + b"}\n")
    return findings


def _events(
    run: Run, traced: int, origin_ns: int | None, findings: list[Finding], processes: dict[str, Any]
) -> Iterator[Event]:
    """Events of all processes; adds findings, and facts about each process."""
    ids = Ids()
    for place, (process, analysis) in enumerate(run.read_processes(findings)):
        start_ns, meta = process.session_start_unix_ns, analysis.trace.meta
        offset_ns = None if start_ns is None or origin_ns is None else start_ns - origin_ns
        apart = offset_ns is None and traced > 1
        name = f"{process.name}, own clock" if apart else process.name
        yield from process_events(analysis, name, offset_ns or 0, ids, place)
        processes[process.name] = {
            "trace": process.trace_path.name if process.trace_path else None,
            "tracer": meta.tracer,
            "tracer_version": meta.tracer_version,
            "gpu": meta.gpu_coverage,
            "clock": "own" if offset_ns is None else "utc",
        }
        findings += [_not_aligned(process)] if apart else []
        del analysis, meta


def _origin(run: Run, traced: list[Process]) -> int | None:
    """UTC time of the timeline's 0: start of the run, or of the only trace; None if unknown."""
    if len(traced) == 1:
        return traced[0].session_start_unix_ns
    begins = [record.start_unix_ns for record in run.manifest.processes] if run.manifest else []
    known = [begin for begin in begins if begin is not None]
    if known and len(known) == len(begins):
        return min(known)
    starts = []
    for process in traced:
        starts.append(process.session_start_unix_ns if process.problem() is None else None)
        process.release()
    return min((start for start in starts if start is not None), default=None)


def _not_aligned(process: Process) -> Finding:
    return Finding(
        "clock-uncertain",
        Severity.WARNING,
        "The trace has no start time, so it begins at 0 on the timeline, not aligned with other processes.",
        process=process.name,
    )
