"""An `.nsys-rep` as input: exported once, cached beside it, exported again when it is newer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import perfharness
from perfharness.cli.main import run
from tests.integration.launches import NSYS, NVTX_SITE
from tests.integration.nsys_profile import nsys_profile

SCRIPT = "import nvtx\nwith nvtx.annotate('stage'): pass\n"


@pytest.mark.slow
@pytest.mark.nsys
def test_a_report_is_exported_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFHARNESS_NSYS", NSYS)
    report = tmp_path / "trace.nsys-rep"
    nsys_profile(NSYS, report, [sys.executable, "-c", SCRIPT], os.environ | {"PYTHONPATH": NVTX_SITE})
    assert run(["export", str(report), "--table", "ranges"]) == 0
    assert "stage" in capsys.readouterr().out
    cached = report.with_suffix(".sqlite")
    first = cached.stat().st_mtime_ns
    assert run(["export", str(report), "--table", "ranges"]) == 0
    assert cached.stat().st_mtime_ns == first
    os.utime(report, ns=(first + 10**6, first + 10**6))
    assert run(["analyze", str(report)]) == 0
    assert cached.stat().st_mtime_ns > first
    assert sorted(path.name for path in report.parent.iterdir()) == ["trace.nsys-rep", "trace.sqlite"]
    assert perfharness.open_run(report).ranges().num_rows == 1


@pytest.mark.nsys
def test_a_damaged_report_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "trace.nsys-rep"
    report.write_bytes(b"not a report")
    assert run(["export", str(report), "--table", "ranges"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not report.with_suffix(".sqlite").exists()


def test_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(tmp_path / "none.nsys-rep"), "--table", "ranges"]) == 1
    assert "none.nsys-rep" in capsys.readouterr().err
