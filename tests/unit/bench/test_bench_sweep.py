"""Sweeps over batch sizes, and the search for the largest batch within a latency target, on tables of latencies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.bench.search.sweep import (
    SweepInterruptedError,
    judge,
    judge_by_most,
    largest_batch,
    sweep,
)
from perfharness.bench.suite.suite import doubling_sizes
from perfharness.errors import UsageError
from perfharness.model.bench import CaseResult, CaseStatus, Estimate
from tests.unit.bench_results import known, made_up


def result(size: int, milliseconds: float, *, half: float = 0.001, status: CaseStatus = "ok") -> CaseResult:
    if status != "ok":
        return made_up("fake", size, status=status, reason=f"{status} at {size}")
    estimate = Estimate(value=milliseconds, low=milliseconds - half, high=milliseconds + half)
    return with_latency(made_up("fake", size), **dict.fromkeys(("mean", "median", "p90", "p95", "p99"), estimate))


def with_latency(case: CaseResult, **changed: Any) -> CaseResult:
    return case.model_copy(update={"latency": known(case.latency).model_copy(update=changed)})


class Table:
    """Measures from a function of the batch size, and remembers what it was asked for."""

    def __init__(self, milliseconds: Callable[[int], float], half: float = 0.001, no_room_from: int | None = None):
        self.milliseconds, self.half, self.no_room_from = milliseconds, half, no_room_from
        self.asked: list[int] = []

    def __call__(self, size: int) -> CaseResult:
        assert size not in self.asked, "nothing is measured twice"
        self.asked.append(size)
        if self.no_room_from is not None and size >= self.no_room_from:
            return result(size, 0, status="memory-limit")
        return result(size, self.milliseconds(size), half=self.half)


@pytest.mark.parametrize(
    ("largest", "smallest", "sizes"),
    [(1, 1, [1]), (8, 1, [1, 2, 4, 8]), (12, 1, [1, 2, 4, 8, 12]), (20, 3, [3, 6, 12, 20])],
)
def test_sizes_double_and_end_with_the_largest(largest: int, smallest: int, sizes: list[int]) -> None:
    assert doubling_sizes(largest, smallest) == sizes
    with pytest.raises(UsageError):
        doubling_sizes(smallest, largest + 1)


def test_a_sweep_ends_where_memory_does_and_says_which() -> None:
    table = Table(lambda size: size, no_room_from=8)
    found = sweep(table, [1, 2, 4, 8, 16])
    assert table.asked == [1, 2, 4, 8]
    assert (found.ended_by, found.ended_at_batch) == ("memory-limit", 8)
    assert [case.status for case in found.cases] == ["ok", "ok", "ok", "memory-limit"]


@pytest.mark.parametrize(("refused", "end"), [((2,), (None, None)), ((2, 4), ("failed", 4))])
def test_one_size_that_fails_ends_no_sweep_two_do(refused: tuple[int, ...], end: tuple[str | None, int | None]) -> None:
    found = sweep(lambda size: result(size, 1.0, status="failed" if size in refused else "ok"), [1, 2, 4, 8])
    assert (found.ended_by, found.ended_at_batch) == end


@pytest.mark.parametrize(
    ("low", "high", "meets"),
    [(8, 10, "meets"), (9, 10.1, "cannot-tell"), (10.1, 12, "misses"), (None, None, "not-measured")],
)
def test_the_interval_decides(low: float | None, high: float | None, meets: str) -> None:
    assert judge(Estimate(value=10, low=low, high=high), 10) == meets


@pytest.mark.parametrize(
    ("p90", "least", "meets"), [(9.9, 1.0, "meets"), (10.1, 1.0, "not-measured"), (14.0, 10.1, "misses")]
)
def test_a_median_without_an_interval_is_judged_by_most_iterations(p90: float, least: float, meets: str) -> None:
    one = with_latency(result(1, 9.0), median=Estimate(value=max(least, 9.0)), p90=Estimate(value=p90), min=least)
    assert judge_by_most(one, "p50", 10) == meets
    assert judge_by_most(one, "p95", 10) == "not-measured"


def test_worked_example() -> None:
    # 2 ms and 0.5 ms an item: 16 items take exactly 10 ms, 15 take 9.5.
    table = Table(lambda size: 2 + size / 2)
    found = largest_batch(table, 9.9, largest=64)
    assert (found.batch_size, found.proven, found.ended_by) == (15, True, "latency")
    assert table.asked[:6] == [1, 2, 4, 8, 16, 32], "doubling until a miss, and once more"
    assert table.asked[6:9] == [12, 14, 15], "halving"
    assert [point.meets for point in found.points if point.batch_size in (15, 16)] == ["misses", "meets"]


@pytest.mark.parametrize(
    ("table", "target", "largest", "expected"),
    [
        # 9 to 11 are slow, 12 is as fast as 8: halving alone would stop at 8
        (Table(lambda size: 11.0 if 8 < size < 12 else 9.0 if size <= 12 else 20.0), 10, 16, (12, "latency", True, [])),
        # a size that misses by itself does not end the doubling
        (Table(lambda size: 50.0 if size == 4 else size / 10), 3.35, 64, (33, "latency", True, [])),
        (Table(lambda _: 1.0, no_room_from=11), 10, 64, (10, "memory-limit", True, [])),
        (Table(lambda _: 1.0), 10, 12, (12, "largest-batch", True, [])),
        # 6 + 1.5 is the last interval below 8; of those that were looked at
        (Table(lambda size: float(size), half=1.5), 8, 16, (6, "undecided", False, [7, 8])),
        (Table(lambda size: 100.0 * size), 8, 16, (None, "latency", False, [])),
        # nothing is proven while a larger size is undecided: 16, or 17 where 16 misses
        (Table(lambda size: 2 + size / 2, half=0.2), 9.9, 64, (15, "undecided", False, [16])),
        (
            Table(lambda size: {16: 20.0, 17: 9.9}.get(size, 2 + size / 2 if size < 16 else 20.0), half=0.1),
            9.9,
            64,
            (15, "latency", False, [17]),
        ),
        # a next size that failed proves nothing
        (
            lambda size: result(size, float(size), status="ok" if size < 5 else "failed"),
            10,
            64,
            (4, "failed", False, []),
        ),
    ],
)
def test_what_ends_a_search(
    table: Callable[[int], CaseResult], target: float, largest: int, expected: tuple[int | None, str, bool, list[int]]
) -> None:
    found = largest_batch(table, target, largest=largest)
    assert (found.batch_size, found.ended_by, found.proven, found.undecided) == expected
    assert all(str(one) in found.reason for one in (found.batch_size, *found.undecided) if one is not None)


@given(st.floats(0.1, 5), st.floats(0.01, 2), st.floats(0.2, 100), st.integers(1, 300))
def test_with_latency_that_grows_the_answer_is_the_one_of_trying_all(
    base: float, slope: float, target: float, largest: int
) -> None:
    table = Table(lambda size: base + slope * size, half=0.0)
    found = largest_batch(table, target, largest=largest)
    truth = [size for size in range(1, largest + 1) if base + slope * size <= target]
    assert found.batch_size == (max(truth) if truth else None)
    assert found.proven == bool(truth)
    assert len(found.points) <= 40


@given(
    st.lists(st.floats(0.1, 20), min_size=1, max_size=80),
    st.floats(0.0, 1.0),
    st.floats(1, 20),
    st.integers(1, 90),
)
def test_whatever_the_latencies_the_proof_holds(
    latencies: list[float], half: float, target: float, no_room_from: int
) -> None:
    table = Table(lambda size: latencies[size - 1], half=half, no_room_from=no_room_from)
    found = largest_batch(table, target, largest=len(latencies))
    points = {point.batch_size: point for point in found.points}
    meeting = [size for size, point in points.items() if point.meets == "meets"]
    assert found.batch_size == max(meeting, default=None), "the largest that was measured and meets it"
    for size, point in points.items():
        if point.meets == "meets":
            assert point.status == "ok"
            assert latencies[size - 1] + half <= target
    if found.proven and found.batch_size != len(latencies):
        assert found.batch_size is not None
        above = points[found.batch_size + 1]
        assert above.meets == "misses" or above.status in ("out-of-memory", "memory-limit")
    assert not (found.proven and found.undecided)
    assert all(size > (found.batch_size or 0) and points[size].meets == "cannot-tell" for size in found.undecided)
    assert table.asked == [point.batch_size for point in found.points]


def test_too_few_iterations_are_no_proof() -> None:
    found = largest_batch(lambda size: with_latency(result(size, 1.0), p99=None), 8, largest=4)
    assert (found.batch_size, found.ended_by, found.proven, found.undecided) == (None, "undecided", False, [])
    assert "iterations" in found.reason


def test_a_best_size_without_an_interval_is_not_proven() -> None:
    def measure(size: int) -> CaseResult:
        return with_latency(result(size, 3.0 * size), median=Estimate(value=3.0 * size, reason="autocorrelated"))

    target = largest_batch(measure, 10.0, figure="p50", largest=4)
    assert (target.batch_size, target.proven) == (3, False)
    assert target.reason


def test_there_is_an_end_to_measuring() -> None:
    found = largest_batch(Table(lambda size: size / 10), 50, largest=1024, most=10)
    assert len(found.points) == 10
    assert (found.batch_size, found.ended_by, found.proven) == (256, "measurements", False)


# ---- the user ends it ----


class Interrupted(Table):
    """Measures so many sizes, then the user ends it."""

    def __init__(self, milliseconds: Callable[[int], float], most: int) -> None:
        super().__init__(milliseconds)
        self.most = most

    def __call__(self, size: int) -> CaseResult:
        if len(self.asked) == self.most:
            raise SweepInterruptedError
        return super().__call__(size)


def test_a_sweep_that_is_interrupted_keeps_what_was_measured() -> None:
    found = sweep(Interrupted(lambda size: size, 2), [1, 2, 4, 8])
    assert [case.case.batch_size for case in found.cases] == [1, 2]
    assert (found.ended_by, found.ended_at_batch) == ("interrupted", 4)


def test_a_search_that_is_interrupted_says_what_is_known() -> None:
    found = largest_batch(Interrupted(lambda size: float(size), 5), 5.0, largest=64)  # 1, 2, 4, 8, 16; then 6
    assert [point.batch_size for point in found.points] == [1, 2, 4, 8, 16]
    assert (found.batch_size, found.ended_by, found.proven) == (4, "interrupted", False)
    nothing = largest_batch(Interrupted(lambda size: float(size), 0), 5.0)
    assert (nothing.batch_size, nothing.ended_by) == (None, "interrupted")


@given(st.integers(0, 12), st.floats(0.5, 300))
def test_a_search_that_goes_on_finds_what_one_in_a_piece_finds(most: int, target: float) -> None:
    """What was measured before the interrupt is looked up."""

    def milliseconds(size: int) -> float:
        return size - (size % 8 == 0) * 1.5

    first = Interrupted(milliseconds, most)
    largest_batch(first, target, largest=256)
    known = {size: result(size, milliseconds(size)) for size in first.asked}
    rest = Table(milliseconds)
    resumed = largest_batch(lambda size: known.get(size) or rest(size), target, largest=256)
    assert resumed == largest_batch(Table(milliseconds), target, largest=256)
    assert not set(first.asked) & set(rest.asked)
