"""Sweeps over batch sizes, and the search for the largest batch within a latency target, on tables of latencies."""

from __future__ import annotations

from collections.abc import Callable

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
from perfharness.model.bench import BenchCase, CaseResult, CaseStatus, Estimate, LatencyStats


def result(size: int, milliseconds: float, *, half: float = 0.001, status: CaseStatus = "ok") -> CaseResult:
    case = BenchCase(
        case_id=f"b{size}", model="m", backend="fake", mode="", precision="fp32", device="cpu", batch_size=size
    )
    if status != "ok":
        return CaseResult(case=case, status=status, reason=f"{status} at {size}")
    estimate = Estimate(value=milliseconds, low=milliseconds - half, high=milliseconds + half)
    latency = LatencyStats(
        iterations=1000, warmup_iterations=50, mean=estimate, std=0.0, median=estimate, p50=milliseconds,
        p90=estimate, p95=estimate, p99=estimate, min=milliseconds, max=milliseconds,
    )  # fmt: skip
    return CaseResult(case=case, status="ok", latency=latency)


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


def test_sizes_double_and_end_with_the_largest() -> None:
    assert doubling_sizes(1) == [1]
    assert doubling_sizes(8) == [1, 2, 4, 8]
    assert doubling_sizes(12) == [1, 2, 4, 8, 12]
    assert doubling_sizes(20, 3) == [3, 6, 12, 20]
    with pytest.raises(UsageError):
        doubling_sizes(1, 2)


def test_a_sweep_ends_where_memory_does_and_says_which() -> None:
    table = Table(lambda size: size, no_room_from=8)
    found = sweep(table, [1, 2, 4, 8, 16])
    assert table.asked == [1, 2, 4, 8]
    assert (found.ended_by, found.ended_at_batch) == ("memory-limit", 8)
    assert [case.status for case in found.cases] == ["ok", "ok", "ok", "memory-limit"]


def test_one_size_that_fails_ends_no_sweep_two_do() -> None:
    def refuses(*sizes: int) -> Callable[[int], CaseResult]:
        return lambda size: result(size, 1.0, status="failed" if size in sizes else "ok")

    assert sweep(refuses(2), [1, 2, 4, 8]).ended_by is None
    found = sweep(refuses(2, 4), [1, 2, 4, 8])
    assert (found.ended_by, found.ended_at_batch) == ("failed", 4)


def test_the_interval_decides() -> None:
    assert judge(Estimate(value=9, low=8, high=10), 10) == "meets"
    assert judge(Estimate(value=9.5, low=9, high=10.1), 10) == "cannot-tell"
    assert judge(Estimate(value=11, low=10.1, high=12), 10) == "misses"
    assert judge(Estimate(value=9), 10) == "not-measured"


@pytest.mark.parametrize(
    ("p90", "least", "meets"), [(9.9, 1.0, "meets"), (10.1, 1.0, "not-measured"), (14.0, 10.1, "misses")]
)
def test_a_median_without_an_interval_is_judged_by_most_iterations(p90: float, least: float, meets: str) -> None:
    median = Estimate(value=max(least, 9.0))
    latency = LatencyStats(
        iterations=400, warmup_iterations=50, mean=median, std=1.0, median=median, p50=median.value,
        p90=Estimate(value=p90), p95=None, p99=None, min=least, max=99.0,
    )  # fmt: skip
    one = result(1, 9.0).model_copy(update={"latency": latency})
    assert judge_by_most(one, "p50", 10) == meets
    assert judge_by_most(one, "p95", 10) == "not-measured"


def test_worked_example() -> None:
    # 2 ms and 0.5 ms an item: 16 items take exactly 10 ms, 15 take 9.5.
    table = Table(lambda size: 2 + size / 2)
    found = largest_batch(table, 9.9, largest=64)
    assert found.batch_size == 15
    assert found.proven
    assert found.ended_by == "latency"
    assert table.asked[:6] == [1, 2, 4, 8, 16, 32], "doubling until a miss, and once more"
    assert table.asked[6:9] == [12, 14, 15], "halving"
    assert [point.meets for point in found.points if point.batch_size in (15, 16)] == ["misses", "meets"]
    assert "a batch of 15 meets a p99 of 9.9 ms" in found.reason


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


def test_nothing_is_proven_while_a_larger_size_is_undecided() -> None:
    """Of 16 the interval has the target inside; of 17 where the next one, 16, misses it."""
    found = largest_batch(Table(lambda size: 2 + size / 2, half=0.2), 9.9, largest=64)
    assert (found.batch_size, found.undecided, found.proven, found.ended_by) == (15, [16], False, "undecided")
    odd = {16: 20.0, 17: 9.9}
    found = largest_batch(
        Table(lambda size: odd.get(size, 2 + size / 2 if size < 16 else 20), half=0.1), 9.9, largest=64
    )
    assert (found.batch_size, found.undecided, found.proven) == (15, [17], False)


def test_a_next_size_without_an_interval_or_that_failed_proves_nothing() -> None:
    def measure(size: int) -> CaseResult:
        return result(size, float(size), status="ok" if size < 5 else "failed")

    found = largest_batch(measure, 10, largest=64)
    assert (found.batch_size, found.proven, found.ended_by) == (4, False, "failed")


def test_a_batch_that_fills_its_tiles_is_found_beyond_one_that_misses() -> None:
    # 9 to 11 are slow, 12 is as fast as 8: halving alone would stop at 8.
    slow = {9: 11.0, 10: 11.0, 11: 11.0, 12: 9.0}
    table = Table(lambda size: slow.get(size, 9.0 if size <= 8 else 20.0))
    found = largest_batch(table, 10, largest=16)
    assert found.batch_size == 12
    assert found.proven


def test_a_size_that_misses_by_itself_does_not_end_the_doubling() -> None:
    table = Table(lambda size: 50.0 if size == 4 else size / 10)
    assert largest_batch(table, 3.35, largest=64).batch_size == 33


def test_memory_may_be_the_end() -> None:
    found = largest_batch(Table(lambda _: 1.0, no_room_from=11), 10, largest=64)
    assert (found.batch_size, found.ended_by, found.proven) == (10, "memory-limit", True)


def test_the_largest_size_asked_for_may_be_the_end() -> None:
    found = largest_batch(Table(lambda _: 1.0), 10, largest=12)
    assert (found.batch_size, found.ended_by, found.proven) == (12, "largest-batch", True)


def test_an_interval_with_the_target_inside_is_undecided_and_said_to_be() -> None:
    found = largest_batch(Table(lambda size: float(size), half=1.5), 8, largest=16)
    assert found.batch_size == 6, "6 + 1.5 is the last interval below 8"
    assert found.undecided == [7, 8], "of those that were looked at"
    assert "is undecided" in found.reason


def test_none_meets() -> None:
    found = largest_batch(Table(lambda size: 100.0 * size), 8, largest=16)
    assert (found.batch_size, found.proven) == (None, False)
    assert "no batch size" in found.reason


def test_too_few_iterations_are_no_proof() -> None:
    def few(size: int) -> CaseResult:
        whole = result(size, 1.0)
        assert whole.latency is not None
        return whole.model_copy(update={"latency": whole.latency.model_copy(update={"p99": None})})

    found = largest_batch(few, 8, largest=4)
    assert found.batch_size is None
    assert "too few iterations" in found.reason


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
    assert found.reason == "interrupted before a batch of 4 was measured; --resume goes on"


def test_a_search_that_is_interrupted_says_what_is_known() -> None:
    found = largest_batch(Interrupted(lambda size: float(size), 5), 5.0, largest=64)  # 1, 2, 4, 8, 16; then 6
    assert [point.batch_size for point in found.points] == [1, 2, 4, 8, 16]
    assert (found.batch_size, found.ended_by, found.proven) == (4, "interrupted", False)
    assert found.reason == (
        "a batch of 4 meets a p99 of 5 ms (4 ms, 3.999 to 4.001); interrupted before a batch of 6 was measured,"
        " --resume goes on"
    )
    nothing = largest_batch(Interrupted(lambda size: float(size), 0), 5.0)
    assert (nothing.batch_size, nothing.ended_by) == (None, "interrupted")
    assert nothing.reason.startswith("nothing was measured for a p99 of 5 ms; interrupted before a batch of 1")


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


def test_a_best_size_without_an_interval_is_not_proven() -> None:
    def measure(size: int) -> CaseResult:
        milliseconds = 3.0 * size
        median = Estimate(value=milliseconds, reason="autocorrelated")
        found = result(size, milliseconds)
        assert found.latency is not None
        return found.model_copy(update={"latency": found.latency.model_copy(update={"median": median})})

    target = largest_batch(measure, 10.0, figure="p50", largest=4)
    assert (target.batch_size, target.proven) == (3, False)
    assert target.reason
