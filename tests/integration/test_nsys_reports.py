"""An `.nsys-rep` as input: exported once, cached beside it, exported again when it is newer."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.integration.launches import NSYS, NVTX_SITE
from tests.integration.nsys_profile import nsys_profile

SCRIPT = "import nvtx\nwith nvtx.annotate('stage'): pass\n"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "trace.nsys-rep"
    environment = os.environ | {"PYTHONPATH": NVTX_SITE}
    nsys_profile(NSYS, path, [sys.executable, "-c", SCRIPT], environment)
    return path


@pytest.mark.nsys
def test_a_report_is_exported_and_kept(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(report), "--table", "ranges", "--nsys", NSYS]) == 0
    assert "stage" in capsys.readouterr().out
    cached = report.with_suffix(".sqlite")
    first = cached.stat().st_mtime_ns
    not_asked = "/no/such/nsys"  # for the export is there
    assert run(["export", str(report), "--table", "ranges", "--nsys", not_asked]) == 0
    assert cached.stat().st_mtime_ns == first
    os.utime(report, ns=(first + 10**9, first + 10**9))
    assert run(["analyze", str(report), "--nsys", NSYS]) == 0
    assert cached.stat().st_mtime_ns > first
    assert sorted(path.name for path in report.parent.iterdir()) == ["trace.nsys-rep", "trace.sqlite"]


@pytest.mark.nsys
def test_a_damaged_report_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "trace.nsys-rep"
    report.write_bytes(b"not a report")
    assert run(["export", str(report), "--table", "ranges", "--nsys", NSYS]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "cannot be exported" in err
    assert not report.with_suffix(".sqlite").exists()


def test_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(tmp_path / "none.nsys-rep"), "--table", "ranges"]) == 1
    assert "none.nsys-rep" in capsys.readouterr().err


def test_an_nsys_that_cannot_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "nsys"
    broken.write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 2023.4.4.54-x'\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    report = tmp_path / "trace.nsys-rep"
    report.write_bytes(b"something")
    assert run(["export", str(report), "--table", "ranges", "--nsys", str(broken)]) == 1
    assert "cannot be exported" in capsys.readouterr().err
