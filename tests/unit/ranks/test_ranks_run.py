"""A run of two ranks, made by hand: what stands in its files, in the report, and what `analyze` is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.model.manifest import MeasuredProcess
from perfharness.render.report.sections import document_of
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import ReadAs, RunSummary, analyze_run, read_manifest
from perfharness.runs.report.gather import gather
from tests.schemas import valid
from tests.support.documents import tables_of
from tests.support.made_ranks import Work, compute_and_reduce, made_rank
from tests.unit.export_runs import process_record, run_folder

FOLDERS = [f"proc_0_gpu_0/rank_{rank}" for rank in range(2)]


def made_run(folder: Path, works: list[Work], world_size: int = 2, **more: Any) -> Path:
    """One launched process whose ranks left a trace each, their clocks 30 ms apart."""
    measured = []
    for rank, work in enumerate(works):
        made_rank(folder / FOLDERS[rank], rank, work, batches=14, offset_us=30_000 * rank, **more)
        trace = f"rank_{rank}/rank_{rank}.sqlite"
        measured.append(
            MeasuredProcess(
                folder=FOLDERS[rank], launched_index=0, pid=100, rank=rank, world_size=world_size, trace=trace
            )
        )
    return run_folder(folder, process_record(0, trace=None, measured=measured))


def late(*computing_us: float) -> list[Work]:
    return [compute_and_reduce([*computing_us], rank) for rank in range(len(computing_us))]


def analyzed(run: Path, **read_as: Any) -> RunSummary:
    return analyze_run(run, read_manifest(run), ReadAs(**read_as))


def test_ranks_are_in_the_results(tmp_path: Path) -> None:
    run = made_run(tmp_path / "out", late(100.0, 300.0))
    summary = analyzed(run)
    written = valid("benchmark_mean", run / "benchmark_mean.json")
    (group,) = written["ranks"]["groups"]
    assert (group["processes"], group["batches"], group["reason"]) == (FOLDERS, 12, None)  # -w 1
    assert [one["waiting_ms"] for one in group["ranks"]] == pytest.approx([0.2, 0.0])
    assert [one["transfer_ms"] for one in group["ranks"]] == pytest.approx([0.02, 0.02])
    assert [one["other_ms"] for one in group["ranks"]] == pytest.approx([0.78, 0.98])
    assert group["delays"][0]["stage"] == ["r", "batch", "compute"]
    assert group["skew"]["clock_error_ms"] == pytest.approx(0.001)  # two clocks, each within 0.5 us
    verdicts = {
        folder: {stage.path[-1]: stage.verdict.detail for stage in result.diagnosis.stages}
        for folder, result in summary.results.items()
        if result.diagnosis is not None
    }
    assert verdicts[FOLDERS[0]]["exchange"] == "rank"
    assert verdicts[FOLDERS[1]]["exchange"] != "rank"
    assert "ranks-share-items" in {finding.code for finding in summary.findings}


@pytest.mark.parametrize(
    ("parallel", "rate", "basis"), [(None, 4000, "recognized"), ("model", 4000, "option"), ("data", 8000, "option")]
)
def test_items_of_ranks(tmp_path: Path, parallel: str | None, rate: float, basis: str) -> None:
    """Each rank has 4 items a millisecond."""
    summary = analyzed(made_run(tmp_path / "out", late(100.0, 100.0)), parallel=parallel)
    mean = summary.mean
    assert mean["throughput"]["items_per_second"] == pytest.approx(rate)
    of_launched, of_rank = (summary.mean_of(folder)["throughput"] for folder in ("proc_0_gpu_0", FOLDERS[1]))
    assert of_launched["items_per_second"] == pytest.approx(rate)
    assert of_rank["items_per_second"] == pytest.approx(4000)
    assert mean["ranks"]["groups"][0]["parallel_basis"] == basis


def test_ranks_that_are_missing_are_counted(tmp_path: Path) -> None:
    summary = analyzed(made_run(tmp_path / "out", late(100.0, 100.0), world_size=4))
    assert [one.code for one in summary.findings].count("ranks-missing") == 1


def test_one_rank_is_no_group(tmp_path: Path) -> None:
    summary = analyzed(made_run(tmp_path / "out", late(100.0)))
    assert "ranks" not in summary.mean
    assert summary.mean["throughput"]["items_per_second"] == pytest.approx(4000)


def test_the_report_has_them(tmp_path: Path) -> None:
    report = gather([locate(made_run(tmp_path / "out", late(100.0, 300.0)))])
    tables = tables_of(document_of(report))
    columns = [column.heading for column in tables["ranks"].columns]
    shown = [columns.index(name) for name in ("rank", "process", "waiting", "came last")]
    assert [[row[place] for place in shown] for row in tables["ranks"].rows] == [
        [0, FOLDERS[0], pytest.approx(0.2), 0.0],
        [1, FOLDERS[1], 0.0, 1.0],
    ]
    stages = tables["collectives"].rows
    assert [row[:4] for row in stages] == [[folder, "batch/exchange", "all_reduce", 1.0] for folder in FOLDERS]
