"""Achieved concurrency, by hand and against counting moment by moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.concurrency import concurrency

Spans = list[tuple[int, int]]


def of(processes: list[Spans], begin: int, end: int) -> tuple[float, float]:
    columns = [np.array(spans, dtype=np.int64).reshape(-1, 2) for spans in processes]
    found = concurrency([column[:, 0] for column in columns], [column[:, 1] for column in columns], begin, end)
    return found.mean_processes, found.all_processes_share


def test_by_hand() -> None:
    """
    a |----|  |----|     0..4, 6..10
    b   |------|         2..8
    window 0 ... 10: a 8, b 6 of 10; both: 2..4 and 6..8
    """
    assert of([[(0, 4), (6, 10)], [(2, 8)]], 0, 10) == (1.4, 0.4)


def test_batches_of_two_threads_that_overlap_are_one_process_at_work() -> None:
    assert of([[(0, 6), (4, 10), (10, 12)], [(0, 20)]], 0, 20) == (1.6, 0.6)


def test_what_is_outside_of_the_window_does_not_count() -> None:
    assert of([[(-5, 2), (8, 30), (40, 50)]], 0, 10) == (0.4, 0.4)


def test_a_process_without_a_batch_in_the_window() -> None:
    assert of([[(0, 10)], [(20, 30)]], 0, 10) == (1.0, 0.0)
    assert of([[], []], 0, 10) == (0.0, 0.0)


SPANS = st.lists(st.tuples(st.integers(-5, 25), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


@given(st.lists(SPANS, min_size=1, max_size=4), st.integers(-3, 10), st.integers(1, 15))
def test_against_counting_moment_by_moment(processes: list[Spans], begin: int, length: int) -> None:
    counts = [
        sum(any(start <= moment < end for start, end in spans) for spans in processes)
        for moment in range(begin, begin + length)
    ]
    mean, everyone = of(processes, begin, begin + length)
    assert np.isclose(mean, sum(counts) / length)
    assert np.isclose(everyone, sum(count == len(processes) for count in counts) / length)
