"""What a person reads first of a run: the table of stages, what to do, the slowest batches."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.support.trace_builder import Recorded

RUNS = Path(__file__).parents[2] / "golden" / "runs"
Captured = pytest.CaptureFixture[str]


def printed(capsys: Captured, *arguments: str | Path) -> str:
    assert run([str(one) for one in arguments]) == 0
    return capsys.readouterr().out


def recorded(tmp_path: Path, name: str) -> Path:
    return shutil.copytree(RUNS / name, tmp_path / name)


def test_names_with_ids_are_one_row(tmp_path: Path, capsys: Captured) -> None:
    trace = Recorded(gpu=False)
    for index in range(50):
        trace.batch(index, 20 * index, 20 * index + 10)
        trace.stage(f"request_{index}", 20 * index, 20 * index + index % 2 + 1)
        trace.stage("work", 20 * index + 3, 20 * index + 8)
    rows = [line.split() for line in printed(capsys, "analyze", trace.write(tmp_path / "t.sqlite")).splitlines()]
    (row,) = [cells for cells in rows if cells[:2] == ["50", "stages"]]
    assert "1.500" in row
    assert [cells[0] for cells in rows if cells[:1] == ["work"]] == ["work"]
    assert run(["analyze", str(tmp_path / "t.sqlite")]) == 0
    assert "request_0" in capsys.readouterr().err


def test_a_long_name_loses_its_middle(tmp_path: Path, capsys: Captured) -> None:
    trace = Recorded(gpu=False)
    for index in range(3):
        trace.batch(index, 20 * index, 20 * index + 10)
        trace.stage(f"begin{'x' * 200}end", 20 * index, 20 * index + 5)
    name = next(
        line for line in printed(capsys, "analyze", trace.write(tmp_path / "t.sqlite")).splitlines() if "…" in line
    )
    assert re.match(r" +beginx+…x+end ", name)
    assert len(name) < 120


def test_a_saving_is_of_the_batches_of_all_processes(tmp_path: Path, capsys: Captured) -> None:
    """Both ranks have the batches that the table has the mean of; one of them waits in `reduce`."""
    text = printed(capsys, "analyze", recorded(tmp_path, "ranks"))
    (batch,) = re.findall(r"serve/batch +16 +([\d.]+)", text)
    assert set(re.findall(r"of ([\d.]+) ms per batch", text)) == {f"{float(batch):.2f}"}
    assert re.search(r"reduce .*\b1 of 2 processes", text)


def test_a_slow_batch_names_the_stage_that_made_it_slow(tmp_path: Path, capsys: Captured) -> None:
    folder, page = recorded(tmp_path, "explained"), tmp_path / "r.md"
    assert run(["report", str(folder), "-o", str(page)]) == 0
    capsys.readouterr()
    for text in (printed(capsys, "analyze", folder, "--slowest", "3"), page.read_text()):
        assert re.search(r"\d[ |]+encode\b", text)
        assert text.count("normal spread") == 1


def test_a_warning_is_on_the_page_once_and_so_is_the_flame_graph(tmp_path: Path, capsys: Captured) -> None:
    folder, page = recorded(tmp_path, "explained"), tmp_path / "r.html"
    assert run(["report", str(folder), "-o", str(page)]) == 0
    warning = capsys.readouterr().err.partition("profiling pass")[2].split(":")[0]
    text = page.read_text()
    assert text.count(warning) == 1
    assert text.count('data-name="flame_0"') == 1
    assert "GPU" not in re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", text)
    assert len(text) < 1_000_000
