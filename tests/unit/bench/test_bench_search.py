"""The largest batch that memory allows, or that meets a latency target, on tables of latencies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.bench.search import search_batches
from perfharness.errors import UsageError
from perfharness.model.bench import CaseResult, CaseStatus, Cell, Estimate
from perfharness.model.bench_suite import BatchSearch
from tests.unit.bench_results import known, made_up

CELL = made_up("fake").case.model_dump(include=set(Cell.model_fields))


def search(
    milliseconds: Callable[[int], float | CaseStatus | None],
    target_ms: float | None = None,
    largest: int = 64,
    half: float | None = 0.001,
) -> BatchSearch:
    """Of a function that gives the p95 of a batch size, its status, or None for an interrupt."""
    asked: list[int] = []

    def measure(size: int) -> CaseResult | None:
        assert size not in asked, "nothing is measured twice"
        asked.append(size)
        value = milliseconds(size)
        if value is None:
            return None
        if isinstance(value, str):
            return made_up("fake", size, status=value, reason="why")
        interval = (None, None) if half is None else (value - half, value + half)
        p95 = Estimate(value=value, low=interval[0], high=interval[1])
        case = made_up("fake", size)
        return case.model_copy(update={"latency": known(case.latency).model_copy(update={"p95": p95})})

    return search_batches(measure, CELL, 1, largest, target_ms)


@pytest.mark.parametrize(
    ("milliseconds", "expected", "sizes"),
    [
        (lambda size: "memory-limit" if size >= 8 else 1.0, (4, "memory-limit", 8), [1, 2, 4, 8]),
        (lambda size: "timeout" if size >= 2 else 1.0, (1, "timeout", 2), [1, 2]),
        # a model may refuse one size; two in a row end the search
        (lambda size: "failed" if size == 2 else 1.0, (64, "largest-batch", None), [1, 2, 4, 8, 16, 32, 64]),
        (lambda size: "failed" if size in (2, 4) else 1.0, (1, "failed", 2), [1, 2, 4]),
        (lambda size: None if size == 4 else 1.0, (2, "interrupted", 4), [1, 2]),
        (lambda size: "unavailable", (None, "unavailable", 1), [1]),
    ],
)
def test_memory_or_a_failure_ends_the_doubling(
    milliseconds: Callable[[int], float | CaseStatus | None],
    expected: tuple[int | None, str, int | None],
    sizes: list[int],
) -> None:
    found = search(milliseconds)
    assert (found.batch_size, found.ended_by, found.ended_at_batch) == expected
    assert found.batch_sizes == sizes
    assert found.reason


@pytest.mark.parametrize(
    ("milliseconds", "target", "half", "expected"),
    [
        # 2 ms and 0.5 ms an item: 15 take 9.5 ms, 16 take 10
        (lambda size: 2 + size / 2, 9.9, 0.001, (15, "latency", 16)),
        # the upper end of the interval decides; without one the figure
        (lambda size: 2 + size / 2, 9.9, 0.5, (14, "latency", 15)),
        (lambda size: 2 + size / 2, 9.9, None, (15, "latency", 16)),
        # one size that misses by itself does not end the doubling
        (lambda size: 50.0 if size == 4 else size / 10, 3.35, 0.001, (33, "latency", 34)),
        (lambda size: 1.0 if size < 11 else "memory-limit", 10, 0.001, (10, "memory-limit", 11)),
        (lambda size: 1.0, 10, 0.001, (64, "largest-batch", None)),
        (lambda size: 100.0, 8, 0.001, (None, "latency", 1)),
        (lambda size: None if size > 8 else 1.0, 8, 0.001, (8, "interrupted", 16)),
    ],
)
def test_the_largest_batch_within_a_target(
    milliseconds: Callable[[int], float | CaseStatus | None],
    target: float,
    half: float | None,
    expected: tuple[int | None, str, int | None],
) -> None:
    found = search(milliseconds, target, half=half)
    assert (found.batch_size, found.ended_by, found.ended_at_batch) == expected
    assert (found.target_ms, found.figure) == (target, "p95")


@given(st.integers(1, 200), st.integers(0, 250))
def test_where_latency_grows_the_answer_is_the_largest_that_meets_it(largest: int, limit: int) -> None:
    found = search(float, limit + 0.5, largest=largest)
    assert found.batch_size == (min(limit, largest) or None)


def test_a_range_that_is_none() -> None:
    with pytest.raises(UsageError):
        search(float, largest=0)
