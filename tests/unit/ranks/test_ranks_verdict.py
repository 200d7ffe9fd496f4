"""The verdict `waiting-on-rank`, at its thresholds, and what is said of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.analysis.ranks import RankGroup, compare_ranks
from perfharness.analysis.ranks.findings import rank_findings
from perfharness.analysis.ranks.verdict import with_rank_delays
from perfharness.model.diagnosis import Cause, Diagnosis, FunctionTime, StageDiagnosis, Verdict
from perfharness.trace import open_trace
from tests.support.made_ranks import compute_and_reduce, made_rank


def judged(
    folder: Path, computing_us: list[float], process: int = 0, apart_us: float = 1000
) -> tuple[RankGroup, Diagnosis]:
    """Ranks that compute and reduce, and the diagnosis of one of them."""
    ranks = [
        made_rank(folder, rank, compute_and_reduce(computing_us, rank), apart_us=apart_us)
        for rank in range(len(computing_us))
    ]
    group = compare_ranks(ranks)
    alone = diagnose(Analysis(open_trace(folder / f"rank_{process}.sqlite")))
    return group, with_rank_delays(alone, group, f"rank_{process}", {})


def stage(diagnosis: Diagnosis, *names: str) -> StageDiagnosis:
    return next(one for one in diagnosis.stages if one.path[-len(names) :] == names)


def test_who_waits_is_told_for_whom_and_why(tmp_path: Path) -> None:
    _, found = judged(tmp_path, [100.0, 300.0])
    for names in (("exchange",), ("exchange", "all_reduce"), ("batch",)):
        one = stage(found, *names)
        assert one.verdict.verdict is Verdict.WAITING_ON_RANK
        assert one.causes[0].code == "waiting-on-rank"
    waits = stage(found, "exchange").causes[0]
    assert waits.share == pytest.approx(200 / 221)
    assert waits.saves_ms == pytest.approx(0.2)
    assert "rank 1" in waits.what
    assert stage(found, "compute").verdict.verdict is not Verdict.WAITING_ON_RANK


def test_the_line_of_the_late_rank_is_in_the_sentence(tmp_path: Path) -> None:
    """That of its stage `compute`, of the first cause that has one."""
    group, alone = judged(tmp_path, [100.0, 300.0], process=1)
    line = FunctionTime("decode", "app.py", 41, self_ms=0.3, cumulative_ms=0.3, error_ms=0.01)
    stages = [
        replace(one, causes=[replace(one.causes[0], where=line)]) if one.path[-1] == "compute" else one
        for one in alone.stages
    ]
    waiting = diagnose(Analysis(open_trace(tmp_path / "rank_0.sqlite")))
    found = with_rank_delays(waiting, group, "rank_0", {"rank_1": replace(alone, stages=stages)})
    cause = stage(found, "exchange").causes[0]
    assert "decode (app.py:41)" in cause.what
    assert cause.where is None


def test_the_late_rank_itself_waits_for_nobody(tmp_path: Path) -> None:
    _, found = judged(tmp_path, [100.0, 300.0], process=1)
    assert all(one.verdict.verdict is not Verdict.WAITING_ON_RANK for one in found.stages)
    assert all(cause.code != "waiting-on-rank" for one in found.stages for cause in one.causes)


@pytest.mark.parametrize(
    ("late_us", "is_verdict", "is_cause"),
    [(153, True, True), (152, False, True), (122, False, True), (121, False, False)],
)
def test_the_threshold_of_the_verdict_and_of_the_cause(
    tmp_path: Path, late_us: int, is_verdict: bool, is_cause: bool
) -> None:
    """Of a batch of `late` + 22 us rank 0 waits `late` - 100: from 30 % on it is the verdict, from 15 % on a cause."""
    _, found = judged(tmp_path, [100.0, late_us], apart_us=0)
    batch = stage(found, "batch")
    assert (batch.verdict.verdict is Verdict.WAITING_ON_RANK) == is_verdict
    assert any(cause.code == "waiting-on-rank" for cause in batch.causes) == is_cause


def cause(code: str, share: float) -> Cause:
    return Cause(code, code, share, None, "none", "try", None)


@pytest.mark.parametrize(
    ("code", "share", "verdict", "codes"),
    [
        ("network-wait", 0.9, Verdict.WAITING_ON_RANK, ["waiting-on-rank"]),  # the same wait, seen from inside
        ("gil-contention", 0.95, Verdict.GIL_CONTENTION, ["gil-contention", "waiting-on-rank"]),
        ("gil-contention", 0.5, Verdict.WAITING_ON_RANK, ["waiting-on-rank", "gil-contention"]),
    ],
)
def test_what_else_was_said_of_the_stage(
    tmp_path: Path, code: str, share: float, verdict: Verdict, codes: list[str]
) -> None:
    group, found = judged(tmp_path, [100.0, 300.0])
    one = stage(found, "exchange")
    before = replace(one, verdict=replace(one.verdict, verdict=Verdict(code)), causes=[cause(code, share)])
    after = with_rank_delays(Diagnosis([before], [], [], []), group, "rank_0", {}).stages[0]
    assert after.verdict.verdict is verdict
    assert [each.code for each in after.causes] == codes


@pytest.mark.parametrize(
    ("late_us", "verdict", "codes"),
    [
        (200.0, Verdict.WAITING_ON_RANK, ["waiting-on-rank"]),  # 45 % of the batch; without, the GPU has 45 % to do
        (160.0, Verdict.WAITING_ON_RANK, ["waiting-on-rank"]),
        (140.0, Verdict.GPU_BOUND, ["gpu-bound", "waiting-on-rank"]),  # 25 %: too little for the verdict
    ],
)
def test_a_gpu_that_waits_for_a_rank_is_not_bound_by_its_work(
    tmp_path: Path, late_us: float, verdict: Verdict, codes: list[str]
) -> None:
    """On four H100s the GPU of rank 2 was at work 90 % of a batch, and half of that in all-reduces that wait."""
    group, found = judged(tmp_path, [100.0, late_us], apart_us=0)
    one = stage(found, "batch")
    before = replace(one, verdict=replace(one.verdict, verdict=Verdict.GPU_BOUND), causes=[cause("gpu-bound", 0.9)])
    after = with_rank_delays(Diagnosis([before], [], [], []), group, "rank_0", {}).stages[0]
    assert after.verdict.verdict is verdict
    assert [each.code for each in after.causes] == codes


def codes(group: RankGroup) -> list[str]:
    return [finding.code for finding in rank_findings(group)]


def test_findings_of_ranks(tmp_path: Path) -> None:
    group, _ = judged(tmp_path, [100.0, 300.0])
    assert codes(group) == ["ranks-share-items", "waiting-on-rank"]
    assert codes(replace(group, parallel_basis="option", delays=[])) == []
    assert codes(replace(group, parallel_basis="option", delays=[], world_size=4)) == ["ranks-missing"]
    unknown = replace(group, parallel=None, parallel_basis=None, parallel_reason="why", delays=[])
    assert codes(unknown) == ["ranks-parallel-unknown"]
    assert codes(replace(group, parallel_basis="option", delays=[], reason="why")) == ["ranks-not-compared"]
