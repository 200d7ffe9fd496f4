"""`--capture-batches`: what it does not go with, and the check of a trace against what was captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.stages.checks import check_journals
from perfharness.cli.main import run
from perfharness.model.findings import Severity
from perfharness.model.journal import CapturedRecord, RecorderJournal, RecorderRecord
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder


def journal(captured: CapturedRecord | None) -> RecorderJournal:
    record = RecorderRecord(
        name="net", domain="perfharness", ranges=9, batches=8, items=32, finalized=True, captured=captured
    )
    return RecorderJournal(schema_version=1, pid=1, ended="finalized", recorders=[record])


@pytest.mark.parametrize(
    ("captured", "codes"),
    [
        (CapturedRecord(ranges=2, batches=1), ["batches-captured"]),
        (CapturedRecord(ranges=3, batches=2), ["trace-missing-ranges", "batches-captured"]),
        (None, ["trace-missing-ranges", "trace-incomplete"]),
    ],
)
def test_a_trace_is_checked_against_what_was_captured(
    tmp_path: Any, captured: CapturedRecord | None, codes: list[str]
) -> None:
    trace = TraceBuilder()
    trace.mark("perfharness.recorder", 0, domain="perfharness", category="net")
    trace.range("pipeline", 1, 10, domain="perfharness", category="net")
    trace.range("batch", 2, 9, domain="perfharness", category="net", payload=1)
    opened = open_trace(trace.write(tmp_path / "trace.sqlite"))
    found = [finding.code for finding in check_journals([journal(captured)], opened)]
    assert [code for code in found if code != "gpu-not-traced"] == codes


@pytest.mark.parametrize(("batches", "severity"), [(8, Severity.NOTE), (0, Severity.ERROR)])
def test_a_recorder_that_makes_no_batches_has_none_to_capture(tmp_path: Any, batches: int, severity: Severity) -> None:
    """As that of `--annotate-collectives`; of no recorder at all a batch is an error."""
    trace = TraceBuilder()
    trace.mark("perfharness.recorder", 0, domain="perfharness", category="net")
    trace.range("all_reduce", 1, 10, domain="perfharness", category="annotated")
    opened = open_trace(trace.write(tmp_path / "trace.sqlite"))
    captured = CapturedRecord(ranges=0, batches=min(batches, 2))
    records = [
        RecorderRecord(
            name=name, domain="perfharness", ranges=9, batches=count, items=0, finalized=True, captured=captured
        )
        for name, count in (("net", batches), ("annotated", 0))
    ]
    journals = [RecorderJournal(schema_version=1, pid=1, ended="finalized", recorders=records)]
    found = [one for one in check_journals(journals, opened) if one.code == "batches-captured"]
    assert {one.severity for one in found} == {severity}
    assert [one for one in found if "annotated" in one.message and batches] == []


@pytest.mark.parametrize(
    "options",
    [*(("--capture-batches", wanted) for wanted in ("5", "5:5", "-1:5", "a:b")), ("--explain",), ("--telemetry",)],
)
def test_what_does_not_go_with_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "script.py").touch()
    command = ["launch", "--tracer", "embedded", "--no-telemetry", "--dry-run", "-o", str(tmp_path / "out")]
    assert run([*command, "--capture-batches", "1:5", str(tmp_path / "script.py")]) == 0
    assert run([*command, "--capture-batches", "1:5", *options, str(tmp_path / "script.py")]) == 2
