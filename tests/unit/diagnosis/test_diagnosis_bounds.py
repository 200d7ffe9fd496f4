"""What a profiling pass that is not trusted still shows: bounds that always hold, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.diagnosis.bounds import share_bounds, with_bounds
from perfharness.analysis.diagnosis.rules.evidence import MISSING_OS
from perfharness.model.diagnosis import StageDiagnosis, StageVerdict, Verdict
from tests.unit.diagnosis_results import cause, function, stage

UNKNOWN = StageVerdict(Verdict.CANNOT_TELL, ["It may compute, or allocate."], "Record all calls.", ["calls"])
COMPUTES = StageVerdict(Verdict.CPU_BOUND, ["It computes."], "Profile it.")

times = st.floats(0.01, 100.0)


@given(times, times, st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.booleans())
def test_whatever_a_pass_added_to_what_the_share_is_between_the_bounds(
    part: float, rest: float, more: float, more_rest: float, is_slower: bool
) -> None:
    """One pass has a part and a rest, the other some more of each; either may be the measured one."""
    fast, slow = (part, part + rest), (part + more, part + more + rest + more_rest)
    (own, measured), (seen, explaining) = (fast, slow) if is_slower else (slow, fast)
    least, most = share_bounds(seen / explaining, explaining / measured)
    assert least - 1e-6 <= own / measured <= most + 1e-6
    assert 0 <= least <= most <= 1


def test_bounds_by_hand() -> None:
    assert share_bounds(0.8, 2.0) == pytest.approx((0.6, 1.0))  # 1.6 of 2.0, of which 1.0 was added
    assert share_bounds(0.3, 2.0) == pytest.approx((0.0, 0.6))
    assert share_bounds(0.6, 0.5) == pytest.approx((0.3, 0.8))  # 0.3 of 0.5, and 0.5 more of anything
    assert share_bounds(0.6, 1.0) == pytest.approx((0.6, 0.6))


def explaining(code: str, share: float, line_ms: float = 15.0, **figures: Any) -> StageDiagnosis:
    """Of 20 ms: twice as long as the measured stage, as far as its cause and that cause's line are."""
    where = function("enhance", line=21, self_ms=line_ms)
    verdict = StageVerdict(Verdict(code), ["all of it"], "mend it")
    return stage("model", cause(code, share=share, where=where), cpu_ms=20.0, verdict=verdict, **figures)


@pytest.mark.parametrize(("share", "is_verdict"), [(0.65, True), (0.64, False), (0.3, False)])
def test_what_dominates_beyond_all_that_was_added_is_the_verdict(share: float, is_verdict: bool) -> None:
    """Of 20 ms, 10 of which were added, 13 are 3 of 10 at least, which the rule asks for."""
    found = with_bounds(stage("model", verdict=UNKNOWN), explaining("allocator-churn", share), 2.0)
    evidence = " ".join(found.verdict.evidence)
    if not is_verdict:
        assert (found.verdict.verdict, found.causes) == (Verdict.CANNOT_TELL, [])
        assert "allocator-churn" in evidence  # a candidate
        return
    (first,) = found.causes
    assert (found.verdict.verdict, first.code, first.saves_ms) == (Verdict.ALLOCATOR_CHURN, "allocator-churn", None)
    assert (first.share, first.share_at_most) == pytest.approx((0.3, 1.0))
    assert found.verdict.missing == ["calls"]
    assert first.where is not None
    assert (first.where.line, first.where.self_ms, first.where.error_ms) == (21, 7.5, 2.5)  # 5 to 10 ms


@pytest.mark.parametrize(
    ("code", "share", "is_verdict"),
    [("gil-contention", 0.9, True), ("gil-contention", 0.55, False), ("cpu-bound", 0.95, False)],
)
def test_a_wait_for_something_unknown_gets_the_name_that_dominates(code: str, share: float, is_verdict: bool) -> None:
    waits = StageVerdict(Verdict.WAITING_ON_SYSTEM, ["It waits."], "--explain names it.", [MISSING_OS])
    measured = stage("model", cause("waiting-on-system", share=0.6), verdict=waits)
    found = with_bounds(measured, explaining(code, share), 2.0)
    assert [one.code for one in found.causes] == [code if is_verdict else "waiting-on-system"]
    assert found.verdict.verdict is (Verdict(code) if is_verdict else Verdict.WAITING_ON_SYSTEM)
    assert "It waits." in found.verdict.evidence
    assert any(code in one or "enhance" in one for one in found.verdict.evidence)
    known = stage("model", cause("waiting-on-system", share=0.6), verdict=replace(waits, missing=[]))
    assert with_bounds(known, explaining(code, share), 2.0) == known


@pytest.mark.parametrize(
    ("code", "share", "slowdown", "is_verdict"),
    [
        ("recompilation", 0.51, 1.8, True),  # 12 % are left
        ("recompilation", 0.49, 1.5, False),  # it does not dominate
        ("garbage-collection", 0.5, 1.75, False),  # 12.5 %
        ("dispatch-bound", 0.75, 2.0, True),
        ("dispatch-bound", 0.74, 2.0, False),
        ("cpu-bound", 0.95, 2.0, True),
    ],
)
def test_enough_is_what_the_rule_of_the_cause_asks_for(
    code: str, share: float, slowdown: float, is_verdict: bool
) -> None:
    found = with_bounds(stage("model", verdict=UNKNOWN), explaining(code, share), slowdown)
    assert (found.verdict.verdict.value == code) is is_verdict


@pytest.mark.parametrize("code", ["first-use", "cpu-quota", "cpu-steal"])
def test_what_is_of_one_pass_is_no_verdict_of_the_other(code: str) -> None:
    before = stage("model", verdict=UNKNOWN)
    assert with_bounds(before, explaining(code, 1.0), 2.0) == before


def test_a_named_cause_of_the_measured_pass_stays_and_gets_its_line() -> None:
    named = StageVerdict(Verdict.ALLOCATOR_CHURN, ["94 %"], "mend it")
    before = stage("model", cause("allocator-churn", share=0.94), verdict=named)
    after = with_bounds(before, explaining("allocator-churn", 0.8), 0.2)
    assert after.verdict == named
    assert (after.causes[0].share, after.causes[0].share_at_most) == (0.94, None)
    assert after.causes[0].where is not None
    assert after.causes[0].where.line == 21
    for other in (explaining("file-wait", 0.9), explaining("allocator-churn", 0.8, line_ms=7.0)):  # not half of it
        assert with_bounds(before, other, 2.0) == before
