"""Where the steady state begins, on series whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from perfharness.analysis.stages.warmup import MIN_BATCHES, judge_warmup, warmup_findings
from perfharness.model.columns import Float64


def noisy(count: int, seed: int = 1) -> Float64:
    return 10.0 + np.random.default_rng(seed).normal(0, 0.1, count)


def changed(count: int, where: slice | list[int], by: float | list[float]) -> Float64:
    times = noisy(count)
    times[where] += by
    return times


SLOW_START = changed(100, slice(7), [40, 30, 12, 8, 5, 3, 2])
FIRST_USE = [221.7, 154.3, 40.7, 176.7]


@pytest.mark.parametrize(
    ("times", "cut", "state", "start", "codes"),
    [
        (SLOW_START, 3, "too-short", 7, ["warmup-too-short"]),
        (SLOW_START, 7, "enough", 7, []),
        # single slow batches later do not matter
        (changed(100, [20, 41, 70, 93], 80.0), 0, "enough", 0, []),
        # a drift is never steady, also behind a slow beginning
        (np.linspace(10, 20, 100), 2, "never-steady", None, ["batches-drift"]),
        (np.linspace(20, 10, 24), 0, "never-steady", None, ["batches-drift"]),
        (np.r_[FIRST_USE, np.linspace(10, 20, 96)], 1, "never-steady", None, ["batches-drift"]),
        # an H200: first use in four batches, then a clock that falls by a few percent while the run goes on
        (np.r_[FIRST_USE, np.full(12, 2.055), np.full(8, 2.163)], 1, "too-short", 4, ["warmup-too-short"]),
        # a beginning that is faster is no warm-up
        (changed(24, slice(3), -5.0), 0, "enough", 0, []),
        # a change after the middle
        (changed(100, slice(60), 5.0), 2, "never-steady", None, ["never-steady"]),
        (noisy(MIN_BATCHES - 1), 0, "cannot-tell", None, []),
        # the slow end that is cut too is no reference
        (changed(20, slice(16, 20), 20.0), 4, "enough", 0, []),
        # a quiet loop may vary by a few percent
        (np.r_[np.full(5, 10.4), np.full(35, 10.0)], 0, "enough", 0, []),
    ],
)
def test_where_the_steady_state_begins(
    times: Float64, cut: int, state: str, start: int | None, codes: list[str]
) -> None:
    judged = judge_warmup(("r",), times, cut)
    assert (judged.state, judged.steady_from) == (state, start)
    findings = warmup_findings([(judged, times)])
    assert [finding.code for finding in findings] == codes
    assert f"-w {start}" in findings[0].hint if "warmup-too-short" in codes else True
    assert (judged.level_ms is None) == (state == "cannot-tell")


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_run_needs_no_warm_up(seed: int) -> None:
    judged = judge_warmup(("r",), noisy(200, seed), 0)
    # One in 370 normal values lies beyond three deviations: one among the first three delays the start a little.
    assert judged.state in ("enough", "too-short")
    assert judged.steady_from is not None
    assert judged.steady_from <= 3
