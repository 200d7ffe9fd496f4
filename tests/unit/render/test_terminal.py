"""What a person reads first of a run: tables whose digits are whole, shortened names, no control characters."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from itertools import takewhile
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.support.trace_builder import Recorded
from tests.unit.charts import report_charts
from tests.unit.render.test_report import hostile_trace

RUNS = Path(__file__).parents[2] / "golden" / "runs"
Captured = pytest.CaptureFixture[str]


def printed(capsys: Captured, *arguments: str | Path) -> str:
    capsys.readouterr()
    assert run([str(one) for one in arguments]) == 0
    return capsys.readouterr().out


def test_names_with_ids_are_one_row(tmp_path: Path, capsys: Captured) -> None:
    trace = Recorded(gpu=False)
    for index in range(50):
        trace.batch(index, 20 * index, 20 * index + 10)
        trace.stage(f"request_{index}", 20 * index, 20 * index + index % 2 + 1)
        trace.stage("work", 20 * index + 3, 20 * index + 8)
    path = trace.write(tmp_path / "t.sqlite")
    assert run(["analyze", str(path)]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    (row,) = [cells for cells in rows if cells[:2] == ["50", "stages"]]
    text = printed(capsys, "analyze", path, "-v")
    (unknown,) = [line for line in text.splitlines() if "--explain" in line]
    assert ("request_" in unknown, "batch, work" in unknown) == (False, True)
    assert (row.count("-"), "request_0" in err) == (3, True)  # times of unlike stages have no mean
    assert len([cells for cells in rows if cells[:1] == ["work"]]) == 1


def test_a_long_name_loses_its_middle_and_a_small_time_keeps_its_digits(tmp_path: Path, capsys: Captured) -> None:
    trace = Recorded(gpu=False)
    for index in range(3):
        trace.batch(index, 20 * index, 20 * index + 10, 8_443_000)
        trace.stage(f"begin{'x' * 200}end", 20 * index, 20 * index + 5)
    path = trace.write(tmp_path / "t.sqlite")
    rows = report_charts(path)["stages_0"]["datasets"]["stages_0_stages"]
    assert re.search("x…x+end", json.dumps(rows, ensure_ascii=False))
    lines = printed(capsys, "analyze", path).splitlines()
    (name,) = [line for line in lines if "…" in line]
    assert re.match(r" +beginx+…x+end ", name)
    assert len(name) < 120
    assert [line.split()[-1] for line in lines if line.split()[:1] == ["batch"]] == ["1.18e-06"]


def test_a_saving_is_of_the_batches_of_all_processes(tmp_path: Path, capsys: Captured) -> None:
    """Both ranks have the batches that the table has the mean of; one of them waits in `reduce`."""
    text = printed(capsys, "analyze", shutil.copytree(RUNS / "ranks", tmp_path / "ranks"))
    (batch,) = re.findall(r"serve/batch +16 +([\d.]+)", text)
    assert set(re.findall(r"of ([\d.]+) ms per batch", text)) == {f"{float(batch):.2f}"}
    assert re.search(r"reduce .*\b1 of 2 processes", text)


def test_a_slow_batch_names_the_stage_that_made_it_slow(tmp_path: Path, capsys: Captured) -> None:
    folder = shutil.copytree(RUNS / "explained", tmp_path / "explained")
    text = printed(capsys, "analyze", folder, "--slowest", "3")
    assert re.search(r"\d +encode +\d", text)
    assert text.count("normal spread") == 1


@pytest.mark.parametrize("width", [40, 60, 75, 200])
def test_no_digit_is_cut_at_any_width(
    width: int, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns go instead, and are named below."""
    trace = Recorded()
    for index in range(5):
        trace.batch(index, 40 * index, 40 * index + 30.123)
        trace.stage("a stage with a name of some length", 40 * index, 40 * index + 20.456)
    path = trace.write(tmp_path / "t.sqlite")
    whole = printed(capsys, "analyze", path).splitlines()
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in printed(capsys, "analyze", path).splitlines()]
    head = next(line for line in lines if "stage" in line.split())
    every = next(line for line in whole if "stage" in line.split()).split()
    gone = [name for name in every if name not in head.split()]
    assert (len(gone) > 0) == (width < 200)
    below = [line for line in lines if "Not shown:" in line]
    assert [name for name in gone if name not in below[0]] == []
    numbers = {number for line in whole for number in re.findall(r"\d+\.\d{3}\b", line)}
    table = list(takewhile(lambda line: line.startswith(" ") and line not in below, lines[lines.index(head) + 2 :]))
    assert {number for line in table for number in re.findall(r"\d+\.\d+", line)} <= numbers | {"5.000"}
    assert all(len(line) <= width for line in table)


@pytest.mark.parametrize("options", [[], ["-v"], ["--format", "md"], ["--slowest", "1"], ["--stage", "batch"]], ids=str)
def test_nothing_steers_a_terminal(options: list[str], tmp_path: Path, capsys: Captured) -> None:
    text = printed(capsys, "analyze", hostile_trace(tmp_path / "run"), *options)
    assert not [one for one in text if unicodedata.category(one) in ("Cc", "Cs", "Cf") and one != "\n"]
    assert "alert(1)" in text
