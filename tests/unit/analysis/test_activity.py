"""Which stages processes are in over time, for the charts beside the samplers' readings."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.metrics.activity import OUTSIDE_STAGES, ProcessActivity, process_activity, shares_over_time
from perfharness.analysis.timeline.clock import tie_trace_clock
from perfharness.model.columns import Int64
from tests.support.trace_builder import MS, Recorded


def ints(*values: int) -> Int64:
    return np.asarray(values, dtype=np.int64)


def activity(names: list[str], stages: list[tuple[int, int, int]], *batches: tuple[int, int]) -> ProcessActivity:
    """Stages as (code, start, end)."""
    code, start, end = np.asarray(stages, dtype=np.int64).reshape(-1, 3).T
    begins, ends = ints(*(one for one, _ in batches)), ints(*(end for _, end in batches))
    return ProcessActivity(names, code, start, end, begins, ends, [], [])


#   bins     0        10        20        30        40
#   batch        [5-------------------28]
#   decode       [5--8]
#   infer               [12----------28]
ROWS: list[tuple[list[ProcessActivity], list[int], dict[str, list[float]]]] = [
    (
        [activity(["decode", "infer"], [(0, 5, 8), (1, 12, 28)], (5, 28))],
        [0, 10, 20, 30, 40],
        {"decode": [0.3, 0, 0, 0], "infer": [0, 0.8, 0.8, 0], OUTSIDE_STAGES: [0.2, 0.2, 0, 0]},
    ),
    (
        [activity(["a"], [(0, 0, 10)], (0, 10)), activity(["b", "a"], [(1, 0, 5), (0, 5, 10)], (0, 10))],
        [0, 10],
        {"a": [0.75], "b": [0.25], OUTSIDE_STAGES: [0.0]},
    ),
    ([], [0, 10], {OUTSIDE_STAGES: [0.0]}),
]


@pytest.mark.parametrize(("processes", "edges", "expected"), ROWS)
def test_shares_by_hand(processes: list[ProcessActivity], edges: list[int], expected: dict[str, list[float]]) -> None:
    found = shares_over_time(processes, ints(*edges))
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), atol=1e-12)


@given(
    intervals=st.lists(st.tuples(st.integers(-50, 250), st.integers(0, 120)), max_size=12),
    edges=st.lists(st.integers(0, 200), min_size=2, max_size=8, unique=True).map(sorted),
)
def test_shares_agree_with_counting_every_nanosecond(intervals: list[tuple[int, int]], edges: list[int]) -> None:
    process = activity(["a"], [(0, start, start + length) for start, length in intervals])
    share = shares_over_time([process], ints(*edges)).get("a", np.zeros(len(edges) - 1))
    counted = [
        sum(start <= moment < start + length for start, length in intervals for moment in range(low, high))
        for low, high in itertools.pairwise(edges)
    ]
    assert share * np.diff(edges) == pytest.approx(counted)


def test_two_calls_are_one_loop(tmp_path: Path) -> None:
    """Batches of 15 ms, one every 20 ms; the first and the last of the thread are warm-up."""
    builder = Recorded()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=0)
    builder.add("pipeline 0..500 x2+1000; batch#* 0..15 x5+20; batch#* 1000..1015 x5+20")
    analysis = builder.analysis(tmp_path, 1)
    clock = tie_trace_clock(analysis.trace, None)
    assert clock is not None
    found = process_activity(analysis.stages, analysis.stage_times, clock)
    assert found is not None
    zero = int(found.batch_start_ns[0])
    shown = [[((begin - zero) / MS, (end - zero) / MS) for begin, end in one] for one in (found.measured, found.warmup)]
    assert shown == [[(20, 1080)], [(0, 20), (1080, 1095)]]
