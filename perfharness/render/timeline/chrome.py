"""A run as a Chrome trace: one JSON file that Perfetto and chrome://tracing open (docs/guides/exports.md)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from perfharness.distribution import VERSION
from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.findings import Finding, Severity
from perfharness.render.timeline.events import ProcessEvents, process_events
from perfharness.render.timeline.ranks import rank_events
from perfharness.render.timeline.tracks import Ids
from perfharness.runs.ranks import RankComparison
from perfharness.runs.run import Process, Run

EVENTS_AT_A_TIME = 1 << 15
FIRST_PLACE = 1000
"""So far above the processes the rows of ranks are drawn."""

COMPRESSION_LEVEL = 4
"""Of gzip; higher levels take several times as long for a few percent."""


def write_chrome_trace(run: Run, path: Path) -> list[Finding]:
    """Write the timeline of all processes, process after process; gzip where the name ends in `.gz`.

    Traces are read one at a time and released. Returns everything found; of several processes, one whose trace cannot
    be read is skipped, with a finding. Raises `ResultError` where no process left a trace or the file cannot be
    written, `TraceError` where the only trace cannot be read.
    """
    traced = [process for process in run.processes if process.trace_path is not None]
    if not traced:
        raise ResultError(f"{run.path} holds no trace, so there is no timeline; see its manifest and stderr.log files.")
    origin = _origin(run, traced)
    ids, findings, described = Ids(), run.launch_findings, {}
    ranks, offsets = None if run.manifest is None else RankComparison(run.manifest), {}
    with replacing(path) as temporary, text_file(temporary, path.suffix == ".gz") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        arrows, separator = 0, ""
        for place, process in enumerate(traced):
            if len(traced) > 1 and (problem := process.problem()) is not None:
                findings.append(problem)
                continue
            analysis = process.analysis
            assert analysis is not None  # there is a trace
            offset, clock = _offset(process, origin)
            apart = clock == "own" and len(traced) > 1
            name = f"{process.name}, own clock" if apart else process.name
            events = process_events(analysis, name, offset, ids, place, arrows)
            for lines in _in_order(events):
                file.write(separator + ",\n".join(lines))
                separator = ",\n"
            arrows += events.arrows
            if ranks is not None and process.record is not None and not apart:
                ranks.visit(process.record, analysis)
                offsets[process.name] = offset
            described[process.name] = _described(process, clock)
            findings += [*process.findings, *([_not_aligned(process)] if apart else [])]
            del analysis, events
            process.release()
        for number, group in enumerate([] if ranks is None else ranks.calls()):
            for lines in _in_order(rank_events(group, offsets, ids, number - FIRST_PLACE)):
                file.write(separator + ",\n".join(lines))
                separator = ",\n"
        other = {
            "made_by": f"perfharness {VERSION}",
            # A string: JSON numbers are doubles for most readers, and nanoseconds since 1970 do not fit.
            "time_origin_unix_ns": None if origin is None else str(origin),
            "processes": described,
            "findings": [finding.to_json() for finding in findings],
        }
        file.write(f'\n],\n"otherData":{json.dumps(other)}}}\n')
    return findings


def _origin(run: Run, traced: list[Process]) -> int | None:
    """UTC time of the timeline's 0: where the run began, or, of one process, its trace. None: no clock is known."""
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


def _offset(process: Process, origin: int | None) -> tuple[int, str]:
    """Offset to add to the times of a process's trace, and the resulting clock."""
    start = process.session_start_unix_ns
    return (0, "own") if start is None or origin is None else (start - origin, "utc")


def _not_aligned(process: Process) -> Finding:
    return Finding(
        "clock-not-known",
        Severity.WARNING,
        "The trace does not tell when it began, so on the timeline it begins at 0 and is not aligned with other "
        "processes.",
        process=process.name,
    )


def _described(process: Process, clock: str) -> dict[str, Any]:
    assert process.analysis is not None
    meta = process.analysis.trace.meta
    return {
        "trace": process.trace_path.name if process.trace_path else None,
        "tracer": meta.tracer,
        "tracer_version": meta.tracer_version,
        "gpu": meta.gpu_coverage,
        "clock": clock,
    }


def _in_order(events: ProcessEvents) -> Iterator[list[str]]:
    """Lines of JSON in order of time, in chunks; of equal times the enclosing event comes first."""
    if events.metadata:
        yield events.metadata
    sources = events.sources
    sizes = [len(source.time_ns) for source in sources]
    if not sum(sizes):
        return
    source_of = np.repeat(np.arange(len(sources), dtype=np.int16), sizes)
    within = np.concatenate([np.arange(size) for size in sizes])
    time = np.concatenate([source.time_ns for source in sources])
    duration = np.concatenate([source.duration_ns for source in sources])
    order = np.lexsort((source_of, -duration, time))
    for begin in range(0, len(order), EVENTS_AT_A_TIME):
        chunk = order[begin : begin + EVENTS_AT_A_TIME]
        lines = np.empty(len(chunk), dtype=object)
        for number in np.unique(source_of[chunk]):
            mine = source_of[chunk] == number
            lines[mine] = sources[number].lines(within[chunk[mine]])
        yield lines.tolist()


@contextmanager
def text_file(path: Path, compressed: bool) -> Iterator[TextIO]:
    """A file for JSON, which is ASCII."""
    if not compressed:
        with path.open("w", encoding="ascii") as file:
            yield file
        return
    with gzip.open(path, "wt", compresslevel=COMPRESSION_LEVEL, encoding="ascii") as file:
        yield file
