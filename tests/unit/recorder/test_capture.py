"""`--capture-batches`: the check of a trace against what was captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.stages.checks import check_journals
from perfharness.model.findings import Severity
from perfharness.model.journal import CapturedRecord, RecorderJournal, RecorderRecord
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder


def found(folder: Path, batch: bool, **recorders: tuple[int, CapturedRecord | None]) -> list[tuple[str, Severity]]:
    """Findings on a trace of two ranges, whose recorders counted so many batches, and captured some."""
    trace = TraceBuilder()
    trace.mark("perfharness.recorder", 0, domain="perfharness", category="net")
    trace.range("pipeline", 1, 10, domain="perfharness", category="net")
    trace.range("stage", 2, 9, domain="perfharness", category="net", payload=1 if batch else None)
    counts = {"domain": "perfharness", "ranges": 9, "items": 32, "finalized": True}
    records = [
        RecorderRecord.model_validate({"name": name, "batches": batches, "captured": captured, **counts})
        for name, (batches, captured) in recorders.items()
    ]
    journal = RecorderJournal(schema_version=1, pid=1, ended="finalized", recorders=records)
    opened = open_trace(trace.write(folder / "trace.sqlite"))
    findings = check_journals([journal], opened)
    return [(one.code, one.severity) for one in findings if one.code != "gpu-not-traced"]


@pytest.mark.parametrize(
    ("captured", "codes"),
    [
        (CapturedRecord(ranges=2, batches=1), ["batches-captured"]),
        (CapturedRecord(ranges=3, batches=2), ["trace-missing-ranges", "batches-captured"]),
        (None, ["trace-missing-ranges", "trace-incomplete"]),
    ],
)
def test_a_trace_is_checked_against_what_was_captured(
    tmp_path: Path, captured: CapturedRecord | None, codes: list[str]
) -> None:
    assert [code for code, _ in found(tmp_path, batch=True, net=(8, captured))] == codes


@pytest.mark.parametrize(("batches", "severities"), [(8, [Severity.NOTE]), (0, [Severity.ERROR] * 2)])
def test_a_recorder_that_makes_no_batches_has_none_to_capture(
    tmp_path: Path, batches: int, severities: list[Severity]
) -> None:
    """As that of `--annotate-collectives`; of no recorder at all a batch is an error."""
    captured = CapturedRecord(ranges=0, batches=min(batches, 2))
    findings = found(tmp_path, batch=False, net=(batches, captured), annotated=(0, captured))
    assert [severity for code, severity in findings if code == "batches-captured"] == severities
