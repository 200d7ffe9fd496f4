"""A run of two ranks, made by hand: what stands in its files, in the report, and what `analyze` is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.diagnosis import with_rank_delays
from perfharness.analysis.ranks import RankGroup, RunRanks
from perfharness.analysis.ranks.findings import rank_findings
from perfharness.model.diagnosis import Cause, Code, Diagnosis, Place, StageDiagnosis
from perfharness.model.manifest import MeasuredProcess
from perfharness.render.blocks import Document
from perfharness.render.report.sections import document_of
from perfharness.render.views.ranks import ranks_view
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import ReadAs, RunSummary, analyze_run, read_manifest
from perfharness.runs.report.gather import gather
from tests.schemas import valid
from tests.support.documents import tables_of
from tests.support.made_batches import near
from tests.support.made_ranks import Work, compute_and_reduce, made_rank, ranks_diagnosis
from tests.support.trace_builder import WORDS
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


def test_a_page_has_the_first_64_ranks(tmp_path: Path) -> None:
    (found,) = gather([locate(made_run(tmp_path / "out", late(100.0, 300.0)))]).runs
    assert found.ranks is not None
    (group,) = found.ranks.groups
    for count, kinds in ((64, ["Table"]), (65, ["Table", "Paragraph"])):
        ranks = [replace(group.ranks[0], rank=rank) for rank in range(count)]
        blocks = ranks_view(RunRanks([replace(group, ranks=ranks, reason=None, skew=None, delays=[])]))
        assert [type(block).__name__ for block in blocks] == kinds
        (table,) = tables_of(Document("", "", blocks, [])).values()
        assert [row[0] for row in table.rows] == list(range(64))


# ---- verdicts and findings ----


def stage(diagnosis: Diagnosis, *names: str) -> StageDiagnosis:
    return next(one for one in diagnosis.stages if one.path[-len(names) :] == names)


def waits_for_rank(one: StageDiagnosis) -> bool:
    return (one.verdict.code, one.verdict.detail) == (Code.WAITING, "rank")


def test_who_waits_is_told_for_whom_and_why(tmp_path: Path) -> None:
    _, found = ranks_diagnosis(tmp_path, [100.0, 300.0])
    for names in (("exchange",), ("exchange", "all_reduce"), ("batch",)):
        assert waits_for_rank(stage(found, *names))
    waits = stage(found, "exchange").verdict
    assert (waits.share, waits.saves_ms) == pytest.approx((200 / 221, 0.2))
    assert all(part in waits.what for part in ("rank 1", "compute"))
    assert not waits_for_rank(stage(found, "compute"))
    _, of_late = ranks_diagnosis(tmp_path, [100.0, 300.0], 1)
    assert all(cause.detail != "rank" for one in of_late.stages for cause in one.causes)


AROUND_KERNEL = {
    "a range of NCCL": ("ncclAllReduce {0}..{1} domain=NCCL", ""),
    "a call": ("all_reduce {0}..{1} category=communication", ""),
    "both": ("all_reduce {0}..{1} category=communication; ncclAllReduce {2}..{3} domain=NCCL", ""),
    "of one rank only": ("ncclAllReduce {0}..{1} domain=NCCL", "inner {2}..{3}"),
}


@pytest.mark.parametrize("case", AROUND_KERNEL)
def test_kernels_that_wait_are_a_wait_for_the_rank(tmp_path: Path, case: str) -> None:
    """Each rank launches a kernel of NCCL after 50 or 250 us of its own; no call of the host waits for it."""

    def work(launch_us: int, around: str) -> Work:
        ranges = around.format(launch_us + 1, launch_us + 9, launch_us + 2, launch_us + 8)
        return lambda _: (
            f"""
            batch 0..480; prepare 0..{launch_us - 1}; reduce {launch_us}..{launch_us + 10}; {ranges}
            launch {launch_us + 4}..{launch_us + 6} -> {launch_us + 8}..300 name=nccl; rest 470..479
            synchronize {launch_us + 11}..460; cudaStreamSynchronize_v3020 {launch_us + 12}..459
        """
        )

    words = WORDS | {"nccl": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}
    first, second = AROUND_KERNEL[case]
    summary = analyzed(made_run(tmp_path / "out", [work(50, first), work(250, second or first)], words=words))
    diagnosis = summary.results[FOLDERS[0]].diagnosis
    assert diagnosis is not None
    reducing = [one for one in diagnosis.stages if "reduce" in one.path]
    assert [waits_for_rank(one) for one in reducing] == [True] * (2 + (case == "both"))


@pytest.mark.parametrize(
    ("late_us", "is_verdict", "is_cause"),
    [(153, True, True), (152, False, True), (108, False, True), (106, False, False)],
)
def test_the_threshold_of_the_verdict_and_of_the_cause(
    tmp_path: Path, late_us: int, is_verdict: bool, is_cause: bool
) -> None:
    """Of a batch of `late` + 22 us rank 0 waits `late` - 100: from 30 % on it is the verdict, from 5 % on a cause."""
    batch = stage(ranks_diagnosis(tmp_path, [100.0, late_us], apart_us=0)[1], "batch")
    assert waits_for_rank(batch) is is_verdict
    assert any(cause.detail == "rank" for cause in batch.causes) is is_cause


@pytest.mark.parametrize(
    ("code", "share", "codes"),
    [
        (Code.WAITING, 0.9, [Code.WAITING]),  # the same wait, seen from inside
        (Code.GPU_BOUND, 0.9, [Code.WAITING]),  # kernels that wait
        (Code.GIL_CONTENTION, 0.95, [Code.GIL_CONTENTION, Code.WAITING]),
        (Code.GIL_CONTENTION, 0.5, [Code.WAITING, Code.GIL_CONTENTION]),
    ],
)
def test_what_else_was_said_of_the_stage(tmp_path: Path, code: Code, share: float, codes: list[Code]) -> None:
    group, found = ranks_diagnosis(tmp_path, [100.0, 300.0])
    place = Place("step", "app.py", 4, share, share)
    other = Cause(code, share, None, "what", "step", 0.3, place, "other")
    before = replace(stage(found, "exchange"), causes=[other])
    (after,) = with_rank_delays(replace(found, stages=[before]), group.delays, "rank_0").stages
    assert [each.code for each in after.causes] == codes
    (rank,) = (each for each in after.causes if each.detail == "rank")
    assert (rank.place, rank.share) == (place, near(200 / 221))


def codes(group: RankGroup) -> list[str]:
    return [finding.code for finding in rank_findings(group)]


def test_findings_of_ranks(tmp_path: Path) -> None:
    group, _ = ranks_diagnosis(tmp_path, [100.0, 300.0])
    assert codes(group) == ["ranks-share-items", "waiting-on-rank"]
    assert codes(replace(group, parallel_basis="option", delays=[])) == []
    assert codes(replace(group, parallel_basis="option", delays=[], world_size=4)) == ["ranks-missing"]
    unknown = replace(group, parallel=None, parallel_basis=None, parallel_reason="why", delays=[])
    assert codes(unknown) == ["ranks-not-compared"]
    assert codes(replace(group, parallel_basis="option", delays=[], reason="why")) == ["ranks-not-compared"]
