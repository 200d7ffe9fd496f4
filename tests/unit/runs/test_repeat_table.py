"""The table of a repeat, as a person and a pipe see it."""

from __future__ import annotations

import io
from pathlib import Path

from perfharness.render.terminal.console import Console
from perfharness.render.terminal.series import print_repeat
from perfharness.runs.series.repeat_file import Repeat, RepeatRow
from tests.unit.runs.test_repeat import case_of, launches


def printed(repeat: Repeat) -> list[str]:
    out = io.StringIO()
    print_repeat(Console(file=out, width=200), repeat)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_mean_and_interval_of_each_stage(tmp_path: Path) -> None:
    case = case_of(tmp_path, launches(9.0, 10.0, 11.0), count=4)
    case.add(RepeatRow(folder="launch_3", place=3, status="failed", reason="it broke"))
    lines = printed(case.repeat)
    cells = [line.split() for line in lines]
    assert ["pipeline/batch", "10.000", "±2.484"] in cells  # 4.3027 / 3**0.5
    assert ["load", "1.000", "±0.000"] in cells
    assert "launch_3: it broke" in lines
    assert not any("GPU" in line for line in lines)


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    case = case_of(tmp_path, launches(9.0, None), count=2)
    assert case.repeat.run["items_per_second"].reason
    assert ["pipeline/batch", "-"] in [line.split() for line in printed(case.repeat)]
