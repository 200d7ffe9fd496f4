"""Throughput against simulated loops whose rate is known: loaders, pauses, threads, processes, queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfharness.analysis.stages.throughput import MIN_PERIODS, Sharing, concurrency, throughput
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.result import BatchLoop, Float64

MS = 1_000_000


def loop(start_ms: Float64 | Sequence[float], batch_ms: float = 1.0, warmup: int = 0, **fields: Any) -> BatchLoop:
    """Batches of one item that begin at these times; the first and the last `warmup` are excluded."""
    start = np.rint(np.asarray(start_ms, dtype=np.float64) * MS).astype(np.int64)
    excluded = np.zeros(len(start), dtype=np.bool_)
    excluded[:warmup] = excluded[max(len(start) - warmup, 0) :] = True
    items = fields.pop("items", np.ones(len(start)))
    return BatchLoop(("r", "batch"), start, start + round(batch_ms * MS), items, excluded, **fields)


def rate(*loops: BatchLoop) -> float | None:
    """Of one process with these loops."""
    found: float | None = throughput({"p": list(loops)}, clock_is_utc=True)["items_per_second"]
    return found


def every(period_ms: float, count: int, begin_ms: float = 0.0) -> Float64:
    return np.asarray(begin_ms + period_ms * np.arange(count), dtype=np.float64)


def test_batches_take_periods_whatever_lies_between_them() -> None:
    """10 ms every 50 ms; 1 + 5 + 1 batches: 5 periods. The last of them ends where the excluded one begins."""
    found = throughput({"p": [loop(every(50, 7), batch_ms=10, warmup=1)]}, clock_is_utc=True)
    assert (found["items_per_second"], found["items"], found["window_ms"], found["periods"]) == (20, 5, 250, 5)


@pytest.mark.parametrize(("count", "expected"), [(0, None), (1, None), (3, None), (4, 20.0), (5, 20.0)])
def test_without_a_batch_after_it_the_last_one_has_no_period(count: int, expected: float | None) -> None:
    assert rate(loop(every(50, count), batch_ms=10)) == expected


def test_a_loop_without_a_batch_left_or_a_window_below_a_millisecond() -> None:
    assert rate(loop(every(50, 10), warmup=5000)) is None
    assert rate(loop(every(0.01, 6), batch_ms=0.005)) is None
    assert rate() is None


def test_a_throttled_batch_that_is_left_out_takes_its_period_with_it() -> None:
    """Periods of 10 ms, but for one of 30 ms in the middle."""
    start = [0, 10, 20, 50, 60, 70]
    rejected = np.asarray([False, False, True, False, False, False])
    slow = loop(start)
    found = throughput({"p": [BatchLoop(slow.path, slow.start_ns, slow.end_ns, slow.items, rejected)]}, True)
    assert (found["items_per_second"], found["periods"]) == (100, 4)


def test_a_batch_that_counted_no_items() -> None:
    items = np.asarray([1, np.nan, 1, 1, 1, 1])
    assert rate(loop(every(10, 6), items=items)) is None
    assert rate(loop(every(10, 6), items=items[::-1].copy(), warmup=1)) is None
    assert rate(loop(every(10, 8), items=np.r_[np.nan, np.ones(6), np.nan], warmup=1)) == 100


def test_loops_one_after_another_add_up_without_the_pause() -> None:
    first, second = loop(every(20, 5), warmup=1), loop(every(20, 20, 2100), warmup=1)
    found = throughput({"p": [first, second]}, clock_is_utc=True)
    assert (found["items_per_second"], found["items"], found["window_ms"]) == (50, 21, 420)


def test_threads_count_while_all_are_steady() -> None:
    """Two threads of 100 items/s; the first batch of each is slow, one is warm 200 ms earlier, and ends first."""
    one = loop(np.r_[0, every(10, 50, 100)], warmup=1)
    other = loop(np.r_[0, every(10, 60, 300)], warmup=1)
    found = throughput({"p": [one, other]}, clock_is_utc=True)
    assert (found["items_per_second"], found["window_ms"]) == (200, 290)


def test_batches_that_overlap_count_where_as_many_end_as_begin() -> None:
    """Tasks of 20 ms, one every 5 ms; and 60 that all begin within 3 ms."""
    assert rate(loop(every(5, 60), batch_ms=20, warmup=1)) == 200
    assert rate(loop(every(0.05, 60), batch_ms=20, warmup=1)) is None


def bursts(size: int, rounds: int, period_ms: float, begin_ms: float = 0.0) -> Float64:
    """Starts of so many tasks at a time, a microsecond apart (`asyncio.gather` in a loop)."""
    starts: Float64 = (every(period_ms, rounds, begin_ms)[:, None] + 0.001 * np.arange(size)).ravel()
    return starts


def test_bursts_count_whole_rounds() -> None:
    """5 rounds of 4 batches, 10.6 ms each. From the second batch to the last, 18 began in 4 rounds' time."""
    found = throughput({"p": [loop(bursts(4, 5, 10.6), 10, warmup=1)]}, clock_is_utc=True)
    assert found["items_per_second"] == pytest.approx(4 / 0.0106, rel=1e-3)
    assert found["periods"] == pytest.approx(12, abs=0.01)
    assert rate(loop(bursts(4, 4, 10.6), 10, warmup=1)) is None


@given(
    size=st.integers(2, 16),
    rounds=st.integers(3, 50),
    warmup=st.integers(0, 3),
    processes=st.sampled_from([1, 4]),
    phase_ms=st.floats(0, 10),
    apart_ms=st.floats(0.001, 9.9),
    is_pool=st.booleans(),
)
def test_batches_that_overlap_take_their_share_of_periods(
    size: int, rounds: int, warmup: int, processes: int, phase_ms: float, apart_ms: float, is_pool: bool
) -> None:
    """Rounds of tasks that begin together, and a full pool of workers at any distance: the rate is exact or null."""
    period_ms, batch_ms = 10.6, 10.6 if is_pool else 10.0
    step_ms = min(apart_ms, 10.6 / size) if is_pool else 0.001
    run = {
        str(process): [loop(np.sort(np.add.outer(
            every(period_ms, rounds, process * phase_ms), step_ms * np.arange(size)
        ).ravel()), batch_ms, warmup)]
        for process in range(processes)
    }  # fmt: skip
    found = throughput(run, clock_is_utc=True)["items_per_second"]
    if found is not None:
        assert found == pytest.approx(processes * size / period_ms * 1000, rel=2e-3)
    if processes == 1 and rounds >= 6:
        assert found is not None


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize(("workers", "count"), [(2, 40), (16, 40)])
@pytest.mark.parametrize("kind", ["rounds", "pool", "different"])
def test_the_bias_of_batches_that_overlap_is_about_zero(kind: str, workers: int, count: int, processes: int) -> None:
    """Batches of 5 to 15 ms: in rounds, of equal workers, of workers up to four times slower; all of 40 runs."""
    slower = np.linspace(1, 4 if kind == "different" else 1, workers)
    round_ms = 5 + 10 * workers / (workers + 1)  # the longest of so many
    truth = workers / round_ms if kind == "rounds" else float((1 / (10 * slower)).sum())
    rng = np.random.default_rng(3)

    def one_loop() -> BatchLoop:
        length = rng.uniform(5, 15, (count, workers)) * slower
        if kind == "rounds":
            begin = np.r_[0, np.cumsum(length.max(axis=1))[:-1]]
            start = np.add.outer(begin, 0.001 * np.arange(workers))
        else:
            start = np.cumsum(length, axis=0) - length
        in_order = np.argsort(start.ravel(), kind="stable")
        in_order = in_order[start.ravel()[in_order] <= start[-1].min()]  # until the first worker has no more
        at = rng.uniform(0, 10) + np.asarray([start.ravel(), (start + length).ravel()])[:, in_order]
        one = loop(at[0], warmup=1)
        return BatchLoop(one.path, one.start_ns, np.rint(at[1] * MS).astype(np.int64), one.items, one.warmup)

    found = [
        throughput({str(process): [one_loop()] for process in range(processes)}, clock_is_utc=True) for _ in range(40)
    ]
    items = np.asarray([one["items"] for one in found])
    expected = np.asarray([one["window_ms"] for one in found]) * truth * processes
    bias, error = (items - expected).sum() / expected.sum(), (items - expected).std() * np.sqrt(40) / expected.sum()
    assert abs(bias) <= max(0.005, 4 * error)
    assert error <= 0.02


@pytest.mark.parametrize("count", [20, 50, 100, 400])
def test_a_server_that_fills_up_and_then_takes_what_it_can(count: int) -> None:
    """16 at once of 40 ms each: 400 items/s, of which the first 16 begin in the same moment."""
    start = np.sort(np.concatenate([every(40, count // 16 + 1, 2.5 * number) for number in range(16)]))[:count]
    start[:16] = np.arange(16) * 0.001
    found = rate(loop(start, batch_ms=40, warmup=1, traced_from_ns=-(10**9)))
    assert found is None or found == pytest.approx(400, rel=0.06)
    if count >= 400:
        assert found is not None


def test_the_shortest_process_decides() -> None:
    long, short = loop(every(10, 100), warmup=1), loop(every(10, 6, 205), warmup=1)
    found = throughput({"long": [long], "short": [short]}, clock_is_utc=True)
    assert (found["items_per_second"], found["window_ms"], found["periods"]) == (200, 40, 8)
    assert found["processes"]["long"]["items_per_second"] == 100
    too_short = loop(every(10, 4, 205), warmup=1)
    found = throughput({"long": [long], "short": [too_short]}, clock_is_utc=True)
    assert found["items_per_second"] is None
    assert found["reason"].startswith("short")
    assert found["processes"]["long"]["items_per_second"] == 100


def test_processes_that_cannot_be_laid_side_by_side() -> None:
    found = throughput({"a": [loop(every(10, 9))], "b": [loop(every(10, 9))]}, clock_is_utc=False)
    assert found["items_per_second"] is None
    assert found["processes"]["a"]["items_per_second"] == 100


def test_nothing_from_before_the_barrier_counts() -> None:
    """A thread that waited from 100 ms to 600 ms, and one that worked on at twice the speed meanwhile."""
    opened = {"barrier_opened_ns": 600 * MS, "traced_from_ns": 0}
    waiting = loop(np.r_[every(10, 10), every(10, 50, 600)], warmup=1, **opened)
    working = loop(np.r_[every(5, 120), every(10, 50, 600)], warmup=1, **opened)
    found = throughput({"p": [waiting, working]}, clock_is_utc=True)
    assert found["items_per_second"] == pytest.approx(200, rel=0.02)
    assert found["window_ms"] <= 490


def queued(count: int, loader_ms: float, work_ms: float, queue: int, wait_ms: float, at: int) -> tuple[Float64, float]:
    """Starts of batches that a loader makes ahead, and when the wait before the batch `at` ended."""
    made, start, opened = np.zeros(count), np.zeros(count), 0.0
    for k in range(count):
        # A place in the queue is free once the batch `queue` places before has been taken.
        free = start[k - queue - 1] if k > queue else 0.0
        made[k] = max(made[k - 1] if k else 0.0, free) + loader_ms
        start[k] = max(made[k], start[k - 1] + work_ms if k else 0.0)
        if k == at:
            start[k] += wait_ms
            opened = start[k]
    return start, opened


@pytest.mark.parametrize("queue", [2, 12, 1000])
@pytest.mark.parametrize("work_ms", [2.0, 10.0, 19.0, 25.0])
@pytest.mark.parametrize("count", [10, 12, 16, 20, 24, 30, 40, 100, 400])
def test_what_was_prepared_during_the_wait_does_not_count(count: int, work_ms: float, queue: int) -> None:
    """A loader of 20 ms; the wait takes a second. Null, or the rate of the slower of loader and work."""
    start, opened = queued(count, 20.0, work_ms, queue, 1000.0, at=2)
    fields: dict[str, Any] = {
        "barrier_opened_ns": round(opened * MS),
        "barrier_wait_ns": 1000 * MS,
        "traced_from_ns": 0,
    }
    found = rate(loop(start, work_ms, warmup=2, barrier_has_workers=True, **fields))
    right = 1000 / max(20.0, work_ms)
    # A queue that runs empty for the whole of the run, and in a longer time than the wait, cannot be seen.
    unseen = 1000 / work_ms if work_ms == 19 or queue == 1000 else right
    assert found is None or found == pytest.approx(right, rel=0.03) or found == pytest.approx(unseen, rel=0.03)
    if count >= 100 and queue <= 12 and work_ms != 19:
        assert found == pytest.approx(right, rel=0.03)


def test_a_wait_with_nobody_else_in_the_process_costs_nothing() -> None:
    start = np.r_[every(20, 2), every(20, 10, 1040)]
    fields: dict[str, Any] = {"barrier_opened_ns": 1040 * MS, "barrier_wait_ns": 1000 * MS, "traced_from_ns": 0}
    assert rate(loop(start, 18, warmup=2, **fields)) == 50
    assert rate(loop(start, 18, warmup=2, barrier_has_workers=True, **fields)) is None


@given(
    seed=st.integers(0, 1 << 32),
    processes=st.integers(1, 4),
    threads=st.integers(1, 3),
    passes=st.integers(1, 3),
    loader=st.floats(0, 40),
    warmup=st.integers(0, 3),
    count=st.integers(1, 60),
)
@example(seed=1, processes=1, threads=1, passes=3, loader=0.0, warmup=3, count=3)
def test_a_constant_rate_comes_out_exactly_or_not_at_all(
    seed: int, processes: int, threads: int, passes: int, loader: float, warmup: int, count: int
) -> None:
    """Any phase, cold batches inside the warm-up, pauses between passes: with steady periods the rate is exact."""
    rng = np.random.default_rng(seed)
    run: dict[str, list[BatchLoop]] = {}
    true = 0.0
    batch_ms = 10.0
    for process in range(processes):
        loops: list[BatchLoop] = []
        phase = rng.uniform(0, 30)
        periods = [batch_ms * (1 + loader) * rng.uniform(0.5, 2) for _ in range(threads)]
        for period in periods:
            at = phase
            for _ in range(passes):
                start = every(period, count + 2 * warmup, at)
                start[:warmup] -= np.sort(rng.uniform(0, 50, warmup))[::-1]  # slow at first
                loops.append(loop(start, 0.9 * min(batch_ms, period), warmup))
                at = start[-1] + period + 50 + rng.uniform(0, 500)  # the next pass's slow beginning lies after this one
            true += 1000 / period
        run[str(process)] = loops
    found = throughput(run, clock_is_utc=True)
    if found["items_per_second"] is not None:
        assert found["items_per_second"] == pytest.approx(true, rel=1e-4)
        assert found["periods"] >= MIN_PERIODS * processes - 1e-6
        assert sum(one["share"] for one in found["processes"].values()) == pytest.approx(1, abs=1e-5)
    else:
        assert found["reason"]
    if processes == threads == 1 and count + (warmup > 0) > MIN_PERIODS:
        assert found["items_per_second"] is not None


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("loader", [0.0, 1.0, 40.0])
@pytest.mark.parametrize("count", [2, 3, 5, 50])
def test_the_bias_is_about_zero(loader: float, count: int, processes: int) -> None:
    """Jitter of 5 % and any phase, loaders of 0 to 40 times as long; mean over 50 runs. Null below three periods."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(50):
        run = {}
        for process in range(processes):
            period = 10 * (1 + loader) * rng.normal(1, 0.05, count + 2)
            start = np.r_[0, np.cumsum(period)[:-1]] + rng.uniform(0, 10 * (1 + loader))
            run[str(process)] = [loop(start, 5, warmup=1)]
        value = throughput(run, clock_is_utc=True)["items_per_second"]
        if value is not None:
            found.append(value / (processes * 100 / (1 + loader)))
    if count < MIN_PERIODS:
        assert found == []
    elif count >= 5 or processes == 1:
        assert len(found) >= 25
    if len(found) < 25:
        return
    assert abs(np.mean(found) - 1) < max(0.01, 4 * np.std(found) / np.sqrt(len(found)))


SPANS = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


@given(st.lists(SPANS, min_size=1, max_size=4))
def test_concurrency_is_what_counting_moment_by_moment_gives(processes: list[list[tuple[int, int]]]) -> None:
    counts = [sum(any(start <= moment < end for start, end in spans) for spans in processes) for moment in range(25)]
    lines = [BusyLine(*np.asarray(spans, dtype=np.int64).reshape(-1, 2).T) for spans in processes]
    mean, everyone = concurrency(lines, 25)
    assert np.isclose(mean, sum(counts) / 25)
    assert np.isclose(everyone, sum(count == len(processes) for count in counts) / 25)


def test_processes_that_share_their_items_count_once() -> None:
    """Two pairs of ranks; a pair works on the same 100 items/s, the pairs on different ones."""
    run = {name: [loop(every(10, 20, begin), warmup=1)] for name, begin in (("a0", 0), ("a1", 1), ("b0", 2), ("b1", 3))}
    found = throughput(run, clock_is_utc=True, sharing=Sharing((("a0", "a1"), ("b0", "b1"))))
    assert found["items_per_second"] == pytest.approx(200)
    assert found["counted_once"] == [["a0", "a1"], ["b0", "b1"]]
    assert [rate["share"] for rate in found["processes"].values()] == pytest.approx([0.5] * 4)
    assert throughput(run, clock_is_utc=True)["items_per_second"] == pytest.approx(400)


def test_a_run_of_ranks_that_may_share_their_items_has_no_rate() -> None:
    run = {name: [loop(every(10, 20), warmup=1)] for name in "ab"}
    found = throughput(run, clock_is_utc=True, sharing=Sharing(unknown="not known"))
    assert (found["items_per_second"], found["reason"]) == (None, "not known")
    assert [rate["items_per_second"] for rate in found["processes"].values()] == pytest.approx([100, 100])
