"""What is made of the output of a tracer, and of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.cli.support.live import LogMirror
from perfharness.model.findings import Severity
from perfharness_launcher.collect import log_lines, tracer_findings, without_import

WELL = (
    "Generating '/tmp/nsys-report-1d12.qdstrm'\n"
    "[1/1] [0%                          ] trace.nsys-rep\r[1/1] [========================100%] trace.nsys-rep\n"
    "Generated:\n    /run/trace.nsys-rep\n"
)
"""As nsys 2023.4 wrote it."""


def log(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tracer.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("", None),
        ("Importer error status: Importation succeeded with non-fatal errors.", Severity.ERROR),
        ("FATAL ERROR: unable to start the collection", Severity.ERROR),
        ("WARNING: CUDA tracing is not supported on this system", Severity.WARNING),
    ],
)
def test_a_complaint_of_nsys_becomes_a_finding(tmp_path: Path, line: str, severity: Severity | None) -> None:
    found = tracer_findings(log_lines(log(tmp_path, f"{WELL}{line}\n")), "proc_0_gpu_0")
    assert [(one.code, one.severity, line in one.message) for one in found] == (
        [("tracer-message", severity, True)] if line else []
    )


FAILED_IMPORT = """\
Generating '/tmp/nsys-report-8f91.qdstrm'
WARNING: CUDA tracing is not supported on this system
Importer error status: Importation failed.

Import Failed with unexpected exception: main.cpp(34): Throw in function {anonymous}::Importer::Importer(...)
Dynamic exception type: boost::wrapexcept<QuadDCommon::RuntimeException>
[QuadDCommon::tag_message*] = Status: AnalysisFailed
Error {
  Type: RuntimeError
}
Generated:
    /run/trace.qdstrm
    /run/trace.nsys-rep
WARNING: 3 events were dropped
"""
"""As nsys 2023.4 wrote it, but for the two warnings."""


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Importer error status: The importer binary and its dependencies were not found.\n", []),
        ("Unable to retrieve the importer version: skipping importation of the QDSTRM file.\n", []),
        ("error: an important library is missing\n", ["error: an important library is missing"]),
        (FAILED_IMPORT, ["WARNING: CUDA tracing is not supported on this system", "WARNING: 3 events were dropped"]),
    ],
)
def test_what_nsys_said_of_its_import_can_be_left_out(tmp_path: Path, said: str, kept: list[str]) -> None:
    lines = without_import(log_lines(log(tmp_path, said)))
    assert [line for line in lines if line.startswith(("WARNING", "error"))] == kept
    messages = [finding.message for finding in tracer_findings(lines, "proc_0_gpu_0")]
    assert [all(line in message for line in kept) for message in messages] == [True] * bool(kept)


def test_a_log_is_mirrored_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    mirror = LogMirror(path, "proc_0_gpu_0")
    assert mirror.new_lines() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert mirror.new_lines() == ["proc_0_gpu_0 | one"]
        file.write(b"o\n\xff\n")
        assert mirror.new_lines() == ["proc_0_gpu_0 | two", "proc_0_gpu_0 | \ufffd"]
        path.rename(tmp_path / "moved")  # the run is put in place while its last lines are read
        file.write(b"the end")
    assert (mirror.new_lines(), mirror.rest(), mirror.rest()) == ([], "proc_0_gpu_0 | the end", "")
