"""Ranks that work together, on traces made by hand: communication, waiting, who is late and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.ranks import RankClock, RankGroup, RankInput, compare_ranks
from perfharness.model import conventions
from tests.support.made_ranks import Work, compute_and_reduce, made_rank
from tests.support.trace_builder import WORDS

CALL = "category=communication"


def compared(folder: Path, *texts: Work | str, **more: Any) -> RankGroup:
    """Ranks with the same text in each batch, or with a text for each.

    Args:
        more: of `made_rank`; `asked` of `compare_ranks`; a list has a value for each rank.
    """
    asked = more.pop("asked", None)
    ranks = []
    for rank, text in enumerate(texts):
        own = {name: value[rank] if isinstance(value, list) else value for name, value in more.items()}
        ranks.append(made_rank(folder, rank, text, **own))
    return compare_ranks(ranks, asked=asked)


def reducing(computing_us: Sequence[float]) -> list[Work]:
    return [compute_and_reduce(computing_us, rank) for rank in range(len(computing_us))]


def of_ranks(found: RankGroup, name: str) -> list[Any]:
    return [getattr(one, name) for one in found.ranks]


def test_each_rank_waits_for_the_last_one_and_the_stage_of_the_delay_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, *reducing([100.0, 300.0, 140.0]))
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
    assert {name: of_ranks(found, name) for name in figures} == {
        name: pytest.approx(values) for name, values in figures.items()
    }
    assert found.skew is not None
    assert (found.skew.p50_ms, found.skew.max_ms, found.skew.clock_error_ms) == pytest.approx((0.2, 0.2, 0.001))
    (delay,) = found.delays
    assert (delay.rank, delay.stage, delay.basis) == (1, ("r", "batch", "compute"), "host")
    assert (delay.at_stage, delay.operation, delay.between_batches) == (("r", "batch", "exchange"), "all_reduce", False)
    assert (delay.lag_ms, delay.excess_ms, delay.late_share) == pytest.approx((0.18, 0.18, 1.0))
    assert (delay.waiting_ms, delay.saves_ms) == pytest.approx((0.18, 0.16))


BETWEEN = f"load 0..{{0}}; batch {{0}}..351; all_reduce {{1}}..350 {CALL}"
PAIR = f"batch 0..{{0}}; compute 0..{{1}}; {{2}} {{1}}..{{0}} {CALL}"


def on_gpu(host: int, gpu: int) -> str:
    """A product is launched in `forward` after so much host time, and takes so long; then an all-reduce in `reduce`."""
    ready, done = host + 10 + gpu, 375
    return f"""
        batch 0..{done}; forward 0..{host + 4}; launch {host}..{host + 2} -> {host + 10}..{ready} name=gemm
        reduce {host + 5}..{host + 9}; launch {host + 6}..{host + 8} -> {ready}..{done} name=nccl
        synchronize {host + 9}..{done}; cudaStreamSynchronize_v3020 {host + 10}..{done}
    """


NAMES = {"first": conventions.collective_name("all_reduce", (0, 1))}
NAMES |= {
    "second": conventions.collective_name("all_reduce", (2, 3)),
    "nccl": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
}
DELAYS: dict[str, tuple[list[str], list[float], tuple[str, ...], dict[str, Any]]] = {
    # name: (text of each rank, ms that each waits, the stage in which rank 1 is late, what else is said of the delay)
    "between batches": (
        [BETWEEN.format(50, 60), BETWEEN.format(300, 310)],
        [0.25, 0.0], ("r", "load"), {"between_batches": True, "at_stage": ("r", "batch"), "lag_ms": 0.25},
    ),
    # Two pairs that never wait for each other: rank 1 holds up rank 0, and nobody else.
    "groups of some ranks": (
        [PAIR.format(410, 100, "first"), PAIR.format(410, 400, "first"), *[PAIR.format(110, 100, "second")] * 2],
        [0.3, 0.0, 0.0, 0.0], ("r", "batch", "compute"), {},
    ),
    "on the GPU, for the host is late": (
        [on_gpu(50, 100), on_gpu(250, 100)], [0.2, 0.0], ("r", "batch", "forward"),
        {"basis": "host", "operation": "AllReduce", "at_stage": ("r", "batch", "reduce"), "excess_ms": 0.2},
    ),
    "on the GPU, for its own work": (
        [on_gpu(50, 100), on_gpu(50, 300)], [0.2, 0.0], ("r", "batch", "forward"),
        {"basis": "gpu", "operation": "AllReduce", "at_stage": ("r", "batch", "reduce"), "excess_ms": 0.2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DELAYS)
def test_where_a_rank_is_late(name: str, tmp_path: Path) -> None:
    texts, waiting_ms, stage, more = DELAYS[name]
    found = compared(tmp_path, *texts, words=WORDS | NAMES)
    assert found.source == ("gpu" if "GPU" in name else "host")
    assert of_ranks(found, "waiting_ms") == pytest.approx(waiting_ms)
    (delay,) = found.delays
    assert (delay.rank, delay.stage) == (1, stage)
    for field, value in more.items():
        assert getattr(delay, field) == (pytest.approx(value) if isinstance(value, float) else value)


def test_calls_of_cpp_code_that_overlap_are_waited_for_once(tmp_path: Path) -> None:
    """DDP: two all-reduces 5 us apart, done 20 and 30 us after the last has come; ranks number their own batches."""
    text = """
        batch 0..332; load 1..{0}; backward {0}..331
        all_reduce {1}..320 category=communication lane=1; all_reduce {2}..330 category=communication lane=2
    """
    texts = [text.format(load, load + 2, load + 7) for load in (100, 300)]
    found = compared(tmp_path, *texts, first_index=[0, 12])
    assert (found.source, found.parallel, found.batches, found.reason) == ("host", "data", 12, None)
    assert of_ranks(found, "collectives") == [2.0, 2.0]
    assert of_ranks(found, "communication_ms") == pytest.approx([0.228, 0.028])
    assert of_ranks(found, "waiting_ms") == pytest.approx([0.2, 0.0])
    assert of_ranks(found, "transfer_ms") == pytest.approx([0.028, 0.028])
    assert [one.communication_ms for one in found.stages] == pytest.approx([0.228, 0.028])
    (delay,) = found.delays
    assert (delay.rank, delay.stage, delay.at_stage[-1]) == (1, ("r", "batch", "load"), "backward")
    assert delay.lag_ms == pytest.approx(0.2)


def test_taking_turns_being_late_is_no_rank_that_is_late(tmp_path: Path) -> None:
    def turns(rank: int) -> Work:
        return lambda index: compute_and_reduce([100.0, 400.0] if index % 2 else [400.0, 100.0], rank)(index)

    assert compared(tmp_path, *reducing([100.0, 101.0])).delays == []
    found = compared(tmp_path, turns(0), turns(1))
    assert found.delays == []
    assert of_ranks(found, "last_share") == [0.5, 0.5]
    assert of_ranks(found, "waiting_ms") == pytest.approx([0.15, 0.15])


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
        return lambda index: compute_and_reduce(computing[index].round(3).tolist(), rank)(index)

    found = compared(tmp_path, work(0), work(1), batches=batches, apart_us=0)
    assert [delay.rank for delay in found.delays] == late
    assert (found.reason is not None) == is_unsure
    assert None not in of_ranks(found, "waiting_ms")


def test_clocks_of_different_traces_are_put_together(tmp_path: Path) -> None:
    found = compared(tmp_path, *reducing([100.0, 300.0]), offset_us=[0, 30_000])
    assert of_ranks(found, "waiting_ms") == pytest.approx([0.2, 0.0])
    assert of_ranks(found, "lag_ms") == pytest.approx([-0.2, 0.2])


def test_a_rank_that_the_collective_before_let_go_late_is_not_blamed(tmp_path: Path) -> None:
    """Rank 1 comes 100 us late every time, after as much work of its own as the other."""
    text = "batch {0}..{1}; compute {0}..{2}; all_reduce {2}..{1} " + CALL
    found = compared(tmp_path, *(text.format(late, late + 801, late + 50) for late in (0, 100)))
    assert of_ranks(found, "waiting_ms") == pytest.approx([0.1, 0.0])
    assert found.delays == []


def test_without_a_clock_nothing_is_said_of_waiting(tmp_path: Path) -> None:
    ranks = [made_rank(tmp_path, rank, work) for rank, work in enumerate(reducing([100.0, 300.0]))]
    vague = compare_ranks([RankInput(one.process, one.rank, one.work, RankClock(0, 400_000)) for one in ranks])
    assert (vague.delays, of_ranks(vague, "last_share")) == ([], [0.0, 0.0])  # within the clocks' error
    found = compare_ranks([ranks[0], RankInput("rank_1", 1, ranks[1].work, None)])
    assert found.reason is not None
    assert "rank_1" in found.reason
    assert of_ranks(found, "waiting_ms") == [None, None]
    assert of_ranks(found, "communication_ms") == pytest.approx([0.22, 0.02])
    assert (found.skew, found.delays) == (None, [])


def test_calls_that_do_not_wait_are_not_judged(tmp_path: Path) -> None:
    """An asynchronous one, a message, and a broadcast whose root came first and went on."""
    text = f"batch 0..200; later 0..10 {CALL}; {{}} 20..30 {CALL}; broadcast {{}}..{{}} {CALL}"
    later = {"later": "all_reduce (async)"}
    found = compared(tmp_path, text.format("send", 40, 50), text.format("recv", 140, 150), words=WORDS | later)
    assert found.reason is not None
    assert (found.not_awaited, found.unmatched) == (12 * 2 * 3, 0)
    assert of_ranks(found, "waiting_ms") == [None, None]
    assert of_ranks(found, "communication_ms") == pytest.approx([0.03, 0.03])


def test_collectives_that_not_every_rank_called_equally_often_are_not_matched(tmp_path: Path) -> None:
    text = f"batch 0..100; all_reduce 20..60 {CALL}; barrier 70..90 {CALL}"
    found = compared(tmp_path, lambda index: text + (f"; all_reduce 0..10 {CALL}" if index == 3 else ""), text)
    assert found.unmatched == 3  # of batch 3: two of rank 0, one of rank 1; its barrier is matched
    assert found.skew is not None
    assert found.skew.collectives == 11 + 12


def test_warm_up_of_one_rank_is_left_out_of_all(tmp_path: Path) -> None:
    assert compared(tmp_path, *reducing([100.0, 300.0]), warmup=[2, 0]).batches == 12 - 4


def test_kernels_in_replayed_graphs_are_not_seen_and_that_is_said(tmp_path: Path) -> None:
    found = compared(tmp_path, *["batch 0..100; graph 5..9 -> 10..90"] * 2)
    assert (found.source, found.ranks) == (None, [])
    assert found.reason is not None
    assert "graph" in found.reason
    assert (found.parallel, found.parallel_basis) == (None, None)


REDUCES = compute_and_reduce([100.0, 100.0], 0)(0)
COMPUTES, LAUNCHES = "batch 0..100; compute 0..90", "batch 0..100; launch 2..4 -> 10..80 name=gemm"


@pytest.mark.parametrize(
    ("text", "of_rank", "parallel", "basis"),
    [
        (REDUCES, {}, "model", "recognized"),
        (REDUCES, {"asked": "data"}, "data", "option"),
        (REDUCES, {"first_index": [0, 12]}, "data", "different_batches"),
        (REDUCES, {"batches": [13, 12]}, None, None),  # some are in common: it may be either
        (REDUCES, {"items": [4, 5]}, "data", "different_batches"),  # a common batch has other items
        (COMPUTES, {}, None, None),
        (COMPUTES, {"shared": [True, True]}, "model", "annotation"),
        (LAUNCHES, {}, "data", "no_collectives"),
    ],
)
def test_whether_ranks_share_their_batches(
    text: str, of_rank: dict[str, Any], parallel: str | None, basis: str | None, tmp_path: Path
) -> None:
    found = compared(tmp_path, text, text, **of_rank)
    assert (found.parallel, found.parallel_basis) == (parallel, basis)
    assert (found.parallel_reason is None) == (parallel is not None)


@given(st.text(min_size=1), st.none() | st.sets(st.integers(0, 99), min_size=1), st.booleans())
def test_the_name_of_a_collective_says_what_was_put_in(name: str, ranks: set[int] | None, is_async: bool) -> None:
    members = None if ranks is None else tuple(sorted(ranks))
    written = conventions.collective_name(f"op {name} end", members, is_async=is_async)
    assert conventions.parse_collective(written) == (f"op {name} end", members, is_async)
