"""A trace against the recorder's own counts: what it says it made, and what is there."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.stages import StageTable
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import RecorderJournal, RecorderRecord
from perfharness.model.trace import Events

NVTX_THAT_OLD_NSYS_IGNORES = (0, 2, 12)
NSYS_THAT_KNOWS_NEW_NVTX = (2024, 1)
"""nsys 2023.4 records no range of nvtx 0.2.12 or newer and says nothing; 2025.3 does. In between: not tried."""


WAYS_TO_END = {
    "exit": "the process came to its end",
    "exception": "the process ended by an exception",
    "running": "the process was killed",
}


def check_journal(journal: RecorderJournal, stages: StageTable, trace: Events) -> list[Finding]:
    """Findings where the trace lacks what the recorder counted, or the recorder was not finalized."""
    findings: list[Finding] = []
    for name in sorted({record.name for record in journal.recorders}):
        records = [record for record in journal.recorders if record.name == name]
        findings.extend(_check_recorder(name, records, journal, stages, trace))
    findings.extend(_untraced_cuda(journal, trace))
    return findings


def _check_recorder(
    name: str, records: list[RecorderRecord], journal: RecorderJournal, stages: StageTable, trace: Events
) -> list[Finding]:
    findings = []
    made = sum(record.ranges for record in records)
    found = _ranges_found(name, records, stages, trace)
    if found < made:
        findings.append(
            Finding(
                "trace-missing-ranges",
                Severity.ERROR,
                f"Recorder '{name}' made {made} ranges, the trace holds {found}.",
                _cure_of_missing_ranges(journal, trace),
            )
        )
    if not all(record.finalized for record in records):
        still_open = [range_name for record in records for range_name in record.open_ranges]
        detail = f" with {len(still_open)} range(s) open ({', '.join(still_open[:5])})" if still_open else ""
        findings.append(
            Finding(
                "recorder-not-finalized",
                Severity.WARNING,
                f"Recorder '{name}' was never finalized: {WAYS_TO_END.get(journal.ended, journal.ended)}{detail}.",
                "Call finalize() when the pipeline is done.",
            )
        )
    return findings


def _ranges_found(name: str, records: list[RecorderRecord], stages: StageTable, trace: Events) -> int:
    if stages.from_recorder:
        return stages.recorded_ranges.get(name, 0)
    # Read as plain NVTX: the recorder's ranges cannot be told from others, so the domain's are counted.
    domains = {record.domain for record in records}
    codes = [code for code in range(len(trace.names)) if trace.names[code] in domains]
    return int(np.isin(trace.ranges.domain, codes).sum())


def _cure_of_missing_ranges(journal: RecorderJournal, trace: Events) -> str:
    if journal.listening is False and trace.meta.tracer == "nsys" and journal.nvtx_version is not None:
        return (
            f"nvtx {journal.nvtx_version} is too new for nsys {trace.meta.tracer_version}, which took no range of it. "
            "Install nvtx<0.2.12 beside the script, use a newer nsys, or `--tracer embedded`."
        )
    if journal.nvtx_version is None and trace.meta.tracer == "nsys":
        return "The package nvtx is not installed beside the script: `pip install nvtx`."
    nvtx, nsys = _version(journal.nvtx_version), _version(trace.meta.tracer_version)
    if trace.meta.tracer == "nsys" and nsys and nsys < NSYS_THAT_KNOWS_NEW_NVTX and nvtx >= NVTX_THAT_OLD_NSYS_IGNORES:
        return (
            f"nvtx {journal.nvtx_version} is too new for nsys {trace.meta.tracer_version}: install nvtx<0.2.12 beside "
            "the script, use a newer nsys, or `--tracer embedded`."
        )
    return "The tracer lost events: measure again with fewer batches, a newer nsys, or `--tracer embedded`."


def _version(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts[:3] if part.isdigit())


def _untraced_cuda(journal: RecorderJournal, trace: Events) -> list[Finding]:
    if not journal.cuda_loaded or trace.meta.gpu_coverage != "traced" or trace.has_calls or trace.has_operations:
        return []
    return [
        Finding(
            "gpu-work-not-traced",
            Severity.ERROR,
            "The process loaded the CUDA driver, but the trace holds no CUDA event; GPU times of 0 may be wrong.",
            "See `perfharness doctor` for what keeps CUDA from being traced.",
        )
    ]
