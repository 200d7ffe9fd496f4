"""Ranks that work together, on traces made by hand: communication, waiting, who is late and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.ranks import RankClock, RankGroup, RankInput, compare_ranks
from perfharness.model import conventions
from tests.support.made_ranks import RankBatch, Work, compute_and_reduce, made_rank


def compared(folder: Path, computing_us: list[float], **more: object) -> RankGroup:
    """Ranks that compute for so long before they reduce."""
    return compare_ranks(
        [made_rank(folder, rank, compute_and_reduce(computing_us, rank), **more) for rank in range(len(computing_us))]  # type: ignore[arg-type]
    )


def test_each_rank_waits_for_the_last_one_and_the_stage_of_the_delay_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, [100.0, 300.0, 140.0])
    assert (found.source, found.batches, found.unmatched, found.not_awaited) == ("host", 12, 0, 0)
    period = (11 * 1000 + 322) / 12 / 1000  # the last batch has none after it
    figures = {
        "batch_ms": [period] * 3,
        "waiting_ms": [0.2, 0.0, 0.16],
        "communication_ms": [0.22, 0.02, 0.18],
        "communication_share": [0.22 / period, 0.02 / period, 0.18 / period],
        "last_share": [0, 1, 0],
        "collectives": [1, 1, 1],
        "lag_ms": [-0.12, 0.18, -0.06],  # than the mean of two others
    }
    assert {name: [getattr(one, name) for one in found.ranks] for name in figures} == {
        name: pytest.approx(values) for name, values in figures.items()
    }
    assert found.skew is not None
    assert (found.skew.p50_ms, found.skew.max_ms, found.skew.clock_error_ms) == pytest.approx((0.2, 0.2, 0.001))
    (delay,) = found.delays
    assert (delay.rank, delay.stage, delay.basis) == (1, ("r", "batch", "compute"), "host")
    assert (delay.at_stage, delay.operation, delay.between_batches) == (("r", "batch", "exchange"), "all_reduce", False)
    assert (delay.lag_ms, delay.excess_ms, delay.late_share) == pytest.approx((0.18, 0.18, 1.0))
    assert (delay.waiting_ms, delay.saves_ms) == pytest.approx((0.18, 0.16))


def test_a_delay_between_batches_is_called_that(tmp_path: Path) -> None:
    def loads(rank: int) -> Work:
        def work(batch: RankBatch) -> float:
            load = 300.0 if rank == 1 else 50.0
            batch.range("load", batch.now_us, batch.now_us + load)
            done = batch.now_us + 350
            batch.now_us += load
            batch.collective("all_reduce", batch.now_us + 10, done)
            return done + 1

        return work

    (delay,) = compare_ranks([made_rank(tmp_path, rank, loads(rank)) for rank in range(2)]).delays
    assert (delay.rank, delay.stage, delay.between_batches) == (1, ("r", "load"), True)
    assert delay.at_stage == ("r", "batch")
    assert delay.lag_ms == pytest.approx(0.25)


def test_calls_of_cpp_code_that_overlap_are_waited_for_once(tmp_path: Path) -> None:
    """DDP: two all-reduces 5 us apart, done 20 and 30 us after the last has come; ranks number their own batches."""

    def backward(rank: int) -> Work:
        def work(batch: RankBatch) -> float:
            load = 300.0 if rank == 1 else 100.0
            begin = batch.now_us
            batch.range("load", begin + 1, begin + load)
            batch.range("backward", begin + load, begin + 331)
            batch.collective_of_cpp("all_reduce", begin + load + 2, begin + 320, lane=1)
            batch.collective_of_cpp("all_reduce", begin + load + 7, begin + 330, lane=2)
            return begin + 332

        return work

    found = compare_ranks([made_rank(tmp_path, rank, backward(rank), first_index=12 * rank) for rank in range(2)])
    assert (found.source, found.parallel, found.batches, found.reason) == ("host", "data", 12, None)
    assert [one.collectives for one in found.ranks] == [2.0, 2.0]
    assert [one.communication_ms for one in found.ranks] == pytest.approx([0.228, 0.028])
    assert [one.waiting_ms for one in found.ranks] == pytest.approx([0.2, 0.0])
    assert [one.transfer_ms for one in found.ranks] == pytest.approx([0.028, 0.028])
    assert [one.communication_ms for one in found.stages] == pytest.approx([0.228, 0.028])
    (delay,) = found.delays
    assert (delay.rank, delay.stage, delay.at_stage[-1]) == (1, ("r", "batch", "load"), "backward")
    assert delay.lag_ms == pytest.approx(0.2)


def test_taking_turns_being_late_is_no_rank_that_is_late(tmp_path: Path) -> None:
    def turns(rank: int) -> Work:
        def work(batch: RankBatch) -> float:
            order = [100.0, 400.0] if batch.index % 2 else [400.0, 100.0]
            return compute_and_reduce(order, rank)(batch)

        return work

    assert compared(tmp_path, [100.0, 101.0]).delays == []
    found = compare_ranks([made_rank(tmp_path, rank, turns(rank)) for rank in range(2)])
    assert found.delays == []
    assert [one.last_share for one in found.ranks] == [0.5, 0.5]
    assert [one.waiting_ms for one in found.ranks] == pytest.approx([0.15, 0.15])


@pytest.mark.parametrize(
    ("seed", "batches", "more_us", "late", "is_unsure"),
    [
        (17, 8, 0, [], True),  # rank 0 comes late in all batches, by chance
        (17, 7, 100, [], True),
        (3, 8, 0, [], False),
        (3, 8, 100, [1], False),
    ],
)
def test_a_rank_is_late_where_chance_does_not_explain_it(
    tmp_path: Path, seed: int, batches: int, more_us: int, late: list[int], is_unsure: bool
) -> None:
    """Work of 100 us and a part that changes slowly from batch to batch, of 50 us in the mean."""
    part = np.random.default_rng(seed).exponential(50, (8, 2))
    for batch in range(1, 8):
        part[batch] = 0.7 * part[batch - 1] + 0.3 * part[batch]
    computing = np.asarray([100, 100 + more_us]) + part

    def work(rank: int) -> Work:
        return lambda batch: compute_and_reduce(computing[batch.index].tolist(), rank)(batch)

    found = compare_ranks([made_rank(tmp_path, rank, work(rank), batches=batches, apart_us=0) for rank in range(2)])
    assert [delay.rank for delay in found.delays] == late
    assert (found.reason is not None) == is_unsure
    assert None not in [one.waiting_ms for one in found.ranks]


def test_clocks_of_different_traces_are_put_together(tmp_path: Path) -> None:
    ranks = [
        made_rank(tmp_path, rank, compute_and_reduce([100.0, 300.0], rank), offset_us=30_000 * rank)
        for rank in range(2)
    ]
    found = compare_ranks(ranks)
    assert [one.waiting_ms for one in found.ranks] == pytest.approx([0.2, 0.0])
    assert [one.lag_ms for one in found.ranks] == pytest.approx([-0.2, 0.2])


def test_a_rank_that_the_collective_before_let_go_late_is_not_blamed(tmp_path: Path) -> None:
    """Rank 1 comes 100 us late every time, after as much work of its own as the other."""

    def work(rank: int) -> Work:
        def made(batch: RankBatch) -> float:
            late = 100.0 * rank
            begin = batch.now_us + late
            batch.range("compute", begin + 1, begin + 50)
            batch.collective("all_reduce", begin + 50, batch.now_us + 800 + late)
            return batch.now_us + 801 + late

        return made

    found = compare_ranks([made_rank(tmp_path, rank, work(rank)) for rank in range(2)])
    assert [one.waiting_ms for one in found.ranks] == pytest.approx([0.1, 0.0])
    assert found.delays == []


def test_without_a_clock_nothing_is_said_of_waiting(tmp_path: Path) -> None:
    ranks = [made_rank(tmp_path, rank, compute_and_reduce([100.0, 300.0], rank)) for rank in range(2)]
    vague = compare_ranks([RankInput(one.process, one.rank, one.work, RankClock(0, 400_000)) for one in ranks])
    assert (vague.delays, [one.last_share for one in vague.ranks]) == ([], [0.0, 0.0])  # within the clocks' error
    found = compare_ranks([ranks[0], RankInput("rank_1", 1, ranks[1].work, None)])
    assert found.reason is not None
    assert "rank_1" in found.reason
    assert [one.waiting_ms for one in found.ranks] == [None, None]
    assert [one.communication_ms for one in found.ranks] == pytest.approx([0.22, 0.02])
    assert (found.skew, found.delays) == (None, [])


def test_calls_that_do_not_wait_are_not_judged(tmp_path: Path) -> None:
    """An asynchronous one, a message, and a broadcast whose root came first and went on."""

    def work(rank: int) -> Work:
        def made(batch: RankBatch) -> float:
            begin = batch.now_us
            batch.collective("all_reduce (async)", begin, begin + 10)
            batch.collective("send" if rank == 0 else "recv", begin + 20, begin + 30)
            late = 0 if rank == 0 else 100
            batch.collective("broadcast", begin + 40 + late, begin + 50 + late)
            return begin + 200

        return made

    found = compare_ranks([made_rank(tmp_path, rank, work(rank)) for rank in range(2)])
    assert found.reason is not None
    assert (found.not_awaited, found.unmatched) == (12 * 2 * 3, 0)
    assert [one.waiting_ms for one in found.ranks] == [None, None]
    assert [one.communication_ms for one in found.ranks] == pytest.approx([0.03, 0.03])


def test_collectives_that_not_every_rank_called_equally_often_are_not_matched(tmp_path: Path) -> None:
    def work(rank: int) -> Work:
        def made(batch: RankBatch) -> float:
            begin = batch.now_us
            if rank == 0 and batch.index == 3:
                batch.collective("all_reduce", begin, begin + 10)
            batch.collective("all_reduce", begin + 20, begin + 60)
            batch.collective("barrier", begin + 70, begin + 90)
            return begin + 100

        return made

    found = compare_ranks([made_rank(tmp_path, rank, work(rank)) for rank in range(2)])
    assert found.unmatched == 3  # of batch 3: two of rank 0, one of rank 1; its barrier is matched
    assert found.skew is not None
    assert found.skew.collectives == 11 + 12


def test_groups_of_some_ranks_are_matched_among_these(tmp_path: Path) -> None:
    """Two pairs that never wait for each other: rank 3 holds up rank 2, and nobody else."""
    computing = [100.0, 100.0, 100.0, 400.0]

    def work(rank: int) -> Work:
        def made(batch: RankBatch) -> float:
            pair = (0, 1) if rank < 2 else (2, 3)
            begin = batch.now_us
            done = begin + max(computing[member] for member in pair) + 10
            batch.range("compute", begin, begin + computing[rank])
            batch.collective(conventions.collective_name("all_reduce", pair), begin + computing[rank], done)
            return done + 1

        return made

    found = compare_ranks([made_rank(tmp_path, rank, work(rank)) for rank in range(4)])
    assert [one.waiting_ms for one in found.ranks] == pytest.approx([0.0, 0.0, 0.3, 0.0])
    assert [(delay.rank, delay.stage) for delay in found.delays] == [(3, ("r", "batch", "compute"))]


def test_warm_up_of_one_rank_is_left_out_of_all(tmp_path: Path) -> None:
    work = [compute_and_reduce([100.0, 300.0], rank) for rank in range(2)]
    found = compare_ranks([made_rank(tmp_path, 0, work[0], warmup=2), made_rank(tmp_path, 1, work[1])])
    assert found.batches == 12 - 4


# ---- on the GPU ----


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def gpu_work(rank: int, host_us: list[float], gpu_us: list[float]) -> Work:
    """Launches a product in `forward` after so much host time, which takes so long; then an all-reduce in `reduce`."""

    def made(batch: RankBatch) -> float:
        begin = batch.now_us
        arrivals = [begin + host + 10 + gpu for host, gpu in zip(host_us, gpu_us, strict=True)]
        done, host = max(arrivals) + 15, begin + host_us[rank]
        batch.range("forward", begin, host + 4)
        batch.kernel("gemm", host, host + 10, host + 10 + gpu_us[rank])
        batch.range("reduce", host + 5, host + 9)
        batch.kernel(NCCL, host + 6, arrivals[rank], done)
        batch.range("synchronize", host + 9, done + 2)
        batch.builder.call("cudaStreamSynchronize_v3020", batch.at(host + 10), batch.at(done + 1))
        return done + 3

    return made


@pytest.mark.parametrize(
    ("host_us", "gpu_us", "basis"),
    [([50.0, 250.0], [100.0, 100.0], "host"), ([50.0, 50.0], [100.0, 300.0], "gpu")],
)
def test_a_delay_on_the_gpu_arises_on_the_host_or_in_its_own_work(
    tmp_path: Path, host_us: list[float], gpu_us: list[float], basis: str
) -> None:
    found = compare_ranks([made_rank(tmp_path, rank, gpu_work(rank, host_us, gpu_us)) for rank in range(2)])
    assert found.source == "gpu"
    assert [one.waiting_ms for one in found.ranks] == pytest.approx([0.2, 0.0])
    (delay,) = found.delays
    assert (delay.rank, delay.stage, delay.basis) == (1, ("r", "batch", "forward"), basis)
    assert (delay.operation, delay.at_stage) == ("AllReduce", ("r", "batch", "reduce"))
    assert delay.excess_ms == pytest.approx(0.2)


def test_kernels_in_replayed_graphs_are_not_seen_and_that_is_said(tmp_path: Path) -> None:
    def work(batch: RankBatch) -> float:
        call = batch.builder.call("cudaGraphLaunch_v10000", batch.at(batch.now_us + 5), batch.at(batch.now_us + 9))
        batch.builder.operation(
            batch.at(batch.now_us + 10), batch.at(batch.now_us + 90), call, table="CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        )
        return batch.now_us + 100

    found = compare_ranks([made_rank(tmp_path, rank, work) for rank in range(2)])
    assert (found.source, found.ranks) == (None, [])
    assert found.reason is not None
    assert "graph" in found.reason
    assert (found.parallel, found.parallel_basis) == (None, None)


# ---- data or model parallel ----


def computes(batch: RankBatch) -> float:
    batch.range("compute", batch.now_us, batch.now_us + 90)
    return batch.now_us + 100


def on_the_gpu(batch: RankBatch) -> float:
    batch.kernel("gemm", batch.now_us + 2, batch.now_us + 10, batch.now_us + 80)
    return batch.now_us + 100


REDUCES = compute_and_reduce([100.0, 100.0], 0)


@pytest.mark.parametrize(
    ("work", "of_rank", "asked", "parallel", "basis"),
    [
        (REDUCES, {}, None, "model", "recognized"),
        (REDUCES, {}, "data", "data", "option"),
        (REDUCES, {"first_index": [0, 12]}, None, "data", "different_batches"),
        (REDUCES, {"batches": [13, 12]}, None, None, None),  # some are in common: it may be either
        (REDUCES, {"items": [4, 5]}, None, "data", "different_batches"),  # a common batch has other items
        (computes, {}, None, None, None),
        (computes, {"shared": [True, True]}, None, "model", "annotation"),
        (on_the_gpu, {}, None, "data", "no_collectives"),
    ],
)
def test_whether_ranks_share_their_batches(
    work: Work, of_rank: dict[str, list[Any]], asked: Any, parallel: str | None, basis: str | None, tmp_path: Path
) -> None:
    more = [{name: values[rank] for name, values in of_rank.items()} for rank in range(2)]
    found = compare_ranks([made_rank(tmp_path, rank, work, **more[rank]) for rank in range(2)], asked=asked)
    assert (found.parallel, found.parallel_basis) == (parallel, basis)
    assert (found.parallel_reason is None) == (parallel is not None)


# ---- arithmetic ----


@given(st.text(min_size=1), st.none() | st.sets(st.integers(0, 99), min_size=1), st.booleans())
def test_the_name_of_a_collective_says_what_was_put_in(name: str, ranks: set[int] | None, is_async: bool) -> None:
    written = conventions.collective_name(f"op {name} end", None if ranks is None else sorted(ranks), is_async=is_async)
    members = None if ranks is None else tuple(sorted(ranks))
    assert conventions.parse_collective(written) == (f"op {name} end", members, is_async)
