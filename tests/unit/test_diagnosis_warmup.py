"""Where the steady state begins, on series whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from perfharness.analysis.diagnosis.warmup import MIN_BATCHES, judge_warmup, warmup_findings


def noisy(count: int, level: float = 10.0, seed: int = 1) -> np.typing.NDArray[np.float64]:
    return level + np.random.default_rng(seed).normal(0, 0.1, count)


def test_a_slow_beginning_is_found_to_the_batch() -> None:
    times = noisy(100)
    times[:7] += [40, 30, 12, 8, 5, 3, 2]
    short, enough = judge_warmup(("r",), times, 3), judge_warmup(("r",), times, 7)
    assert (short.state, short.steady_from) == ("too-short", 7)
    assert (enough.state, enough.steady_from) == ("enough", 7)
    (finding,) = warmup_findings([short, enough])
    assert finding.code == "warmup-too-short"
    assert "-w 7" in finding.hint


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_run_needs_no_warm_up(seed: int) -> None:
    judged = judge_warmup(("r",), noisy(200, seed=seed), 0)
    # One in 370 normal values lies beyond three deviations: one among the first three delays the start a little.
    assert judged.state in ("enough", "too-short")
    assert judged.steady_from is not None
    assert judged.steady_from <= 3


def test_single_slow_batches_later_do_not_matter() -> None:
    times = noisy(100)
    times[[20, 41, 70, 93]] = 90.0
    assert judge_warmup(("r",), times, 0).state == "enough"


def test_a_drift_is_never_steady() -> None:
    judged = judge_warmup(("r",), np.linspace(10, 20, 100), 2)
    assert judged.state == "never-steady"
    assert [finding.code for finding in warmup_findings([judged])] == ["never-steady"]


def test_a_drift_does_not_hide_a_slow_beginning() -> None:
    times = np.r_[[221.7, 154.3, 40.7, 176.7], np.linspace(10, 20, 96)]
    judged = judge_warmup(("r",), times, 1)
    assert (judged.state, judged.steady_from) == ("never-steady", 4)
    assert [finding.code for finding in warmup_findings([judged])] == ["warmup-too-short", "never-steady"]


def test_a_clock_that_steps_by_a_few_percent_is_steady() -> None:
    # An H200: first use in four batches, then a clock that falls while the run goes on.
    times = np.r_[[221.7, 154.3, 40.7, 176.7], np.full(12, 2.055), np.full(8, 2.163)]
    judged = judge_warmup(("r",), times, 1)
    assert (judged.state, judged.steady_from) == ("too-short", 4)


def test_a_change_after_the_middle_is_never_steady() -> None:
    times = noisy(100)
    times[:60] += 5
    assert judge_warmup(("r",), times, 2).state == "never-steady"


def test_too_few_batches_tell_nothing() -> None:
    judged = judge_warmup(("r",), noisy(MIN_BATCHES - 1), 0)
    assert (judged.state, judged.steady_from, judged.level_ms) == ("cannot-tell", None, None)
    assert warmup_findings([judged]) == []


def test_the_slow_end_that_is_cut_too_is_no_reference() -> None:
    times = noisy(20)
    times[-4:] = 30.0
    assert judge_warmup(("r",), times, 4).state == "enough"


def test_a_quiet_loop_may_vary_by_a_few_percent() -> None:
    times = np.full(40, 10.0)
    times[:5] = 10.4
    assert judge_warmup(("r",), times, 0).steady_from == 0
