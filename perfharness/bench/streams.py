"""Several sessions of one case in one process: one CUDA context, a stream and a thread for each, as servers have it."""

from __future__ import annotations

from pathlib import Path

from perfharness.bench.at_once import measured_at_once, started
from perfharness.bench.outcome import case_outcome
from perfharness.bench.spec import CaseSpec
from perfharness.model.bench import StreamsRecord

FOLDER = "streams"
ENTRY = "perfharness.bench.streams_case"


def measure_streams(spec: CaseSpec, folder: Path) -> StreamsRecord:
    """Let a process of its own do it: its memory and its end are not the case's."""
    place = folder / FOLDER
    with started(ENTRY, measured_at_once(spec, streams=spec.streams), place, {}) as process:
        code = process.wait()
    result = case_outcome(place, spec.case, code)
    if result.streams is None:
        why = f"the process with {spec.streams} streams is {result.status}: {result.reason}"
        return StreamsRecord(streams=spec.streams, memory=result.memory, reason=why)
    return result.streams
