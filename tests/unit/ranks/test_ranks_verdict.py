"""Waits for other ranks, at their thresholds, and what is said of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfharness.analysis.diagnosis import with_rank_delays
from perfharness.analysis.ranks import RankGroup
from perfharness.analysis.ranks.findings import rank_findings
from perfharness.model.diagnosis import Cause, Code, Diagnosis, Place, StageDiagnosis
from tests.support.made_batches import near
from tests.support.made_ranks import ranks_diagnosis


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


def test_the_late_rank_itself_waits_for_nobody(tmp_path: Path) -> None:
    _, found = ranks_diagnosis(tmp_path, [100.0, 300.0], 1)
    assert all(cause.detail != "rank" for one in found.stages for cause in one.causes)


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
    assert codes(unknown) == ["ranks-parallel-unknown"]
    assert codes(replace(group, parallel_basis="option", delays=[], reason="why")) == ["ranks-not-compared"]
