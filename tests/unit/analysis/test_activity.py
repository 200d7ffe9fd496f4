from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.metrics.activity import OUTSIDE_STAGES, ProcessActivity, process_activity, shares_over_time
from perfharness.analysis.timeline.clock import tie_trace_clock
from perfharness.model.trace import Int64
from perfharness.trace import open_trace
from tests.unit.recorded_traces import MS, Recorded


def ints(*values: int) -> Int64:
    return np.asarray(values, dtype=np.int64)


def activity(names: list[str], stages: list[tuple[int, int, int]], batches: list[tuple[int, int]]) -> ProcessActivity:
    """Stages as (code, start, end)."""
    return ProcessActivity(
        names,
        ints(*(code for code, _, _ in stages)),
        ints(*(start for _, start, _ in stages)),
        ints(*(end for _, _, end in stages)),
        ints(*(start for start, _ in batches)),
        ints(*(end for _, end in batches)),
        [],
        [],
    )


#   bins     0        10        20        30        40
#   batch        [5-------------------28]
#   decode       [5--8]
#   infer               [12----------28]
def test_shares_by_hand() -> None:
    process = activity(["decode", "infer"], [(0, 5, 8), (1, 12, 28)], [(5, 28)])
    found = shares_over_time([process], ints(0, 10, 20, 30, 40))
    assert found.names == ["decode", "infer", OUTSIDE_STAGES]
    np.testing.assert_allclose(found.share, [[0.3, 0, 0, 0], [0, 0.8, 0.8, 0], [0.2, 0.2, 0, 0]])


def test_shares_are_of_all_processes_and_names_are_one() -> None:
    one, other = activity(["a"], [(0, 0, 10)], [(0, 10)]), activity(["b", "a"], [(1, 0, 5), (0, 5, 10)], [(0, 10)])
    found = shares_over_time([one, other], ints(0, 10))
    assert found.names == ["a", "b", OUTSIDE_STAGES]
    np.testing.assert_allclose(found.share[:, 0], [0.75, 0.25, 0])
    assert shares_over_time([], ints(0, 10)).share.tolist() == [[0.0]]


@given(
    intervals=st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 120)), max_size=12),
    edges=st.lists(st.integers(0, 200), min_size=2, max_size=8, unique=True).map(sorted),
)
def test_shares_agree_with_counting_every_nanosecond(intervals: list[tuple[int, int]], edges: list[int]) -> None:
    process = activity(["a"], [(0, start, start + length) for start, length in intervals], [])
    share = shares_over_time([process], ints(*edges)).share[0]
    counted = [
        sum(start <= moment < start + length for start, length in intervals for moment in range(low, high))
        for low, high in itertools.pairwise(edges)
    ]
    assert share * np.diff(edges) == pytest.approx(counted)


def test_two_calls_are_one_loop(tmp_path: Path) -> None:
    """Batches of 15 ms, one every 20 ms; the first and the last of the thread are warm-up."""
    builder = Recorded()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=0)
    for at in (0, 1000):
        builder.stage("pipeline", at, at + 500)
        for index in range(5):
            builder.batch(index, at + 20 * index, at + 20 * index + 15)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    stages = Analysis(trace).stages
    clock = tie_trace_clock(trace, None)
    assert clock is not None
    found = process_activity(stages, Analysis(trace, AnalysisOptions(1)).stage_times, clock)
    assert found is not None
    zero = int(found.batch_start_ns[0])
    assert [(begin - zero, end - zero) for begin, end in found.measured] == [
        (20 * MS, 1080 * MS),
    ]  # fmt: skip
    assert [(begin - zero, end - zero) for begin, end in found.warmup] == [
        (0, 20 * MS), (1080 * MS, 1095 * MS),
    ]  # fmt: skip
