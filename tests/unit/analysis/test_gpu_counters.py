"""Counters of a stage from the trace's readings: worked by hand, and against a GPU simulated moment by moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.model.diagnosis import GpuCounters
from tests.support.made_batches import Batch, diagnosed, stage_of
from tests.support.trace_builder import H200, US, TraceBuilder

NAMES = [
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "Compute Warps in Flight [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
]
TWO = "first 0..500; second 500..1000"
Values = dict[int, tuple[int, int, int, int, int]]
"""Readings by the end of their period of 100 us; zeros where there are none."""


def counters(
    path: Path, text: str, *values: Values, stage: str = "stage", names: list[str] = NAMES, **more: Any
) -> list[GpuCounters]:
    """Of a stage; `values` are of each GPU."""

    def content(batch: Batch) -> None:
        batch.add(text)
        for gpu, readings in enumerate(values):
            if readings:
                batch.read(names, 100, readings, gpu=gpu)

    return stage_of(diagnosed(path, content, **more), stage).counters


def approx(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, abs=1e-9)


KERNEL = "launch 10..14 -> {}..{}"
BY_HAND: dict[str, tuple[str, Values, dict[str, float | None], int]] = {
    # name: (what ran, readings, shares, how many reasons are given)
    "whole periods": (
        KERNEL.format(100, 300), {200: (90, 60, 20, 30, 10), 300: (100, 80, 30, 20, 10)},
        {"sm_active": 0.95, "tensor": 0.7, "occupancy": 0.25, "dram": 0.35, "seconds": 12 * 200e-6}, 1,
    ),
    # 50 us at 80 % of tensor read 40 % over 100 us
    "parts of periods": (
        KERNEL.format(150, 250), dict.fromkeys((200, 300), (50, 40, 10, 0, 0)),
        {"sm_active": 1.0, "tensor": 0.8, "occupancy": 0.2}, 1,
    ),
    # 2 us in 100: a whole per cent stands for half of what a kernel can do
    "too short": (
        KERNEL.format(120, 122), {200: (2, 1, 0, 0, 0)},
        {"sm_active": None, "tensor": None, "dram": None, "uncertainty": None, "seconds": 12 * 2e-6}, 5,
    ),
    "a copy inside the GPU": (
        "copy 10..14 -> 100..300 kind=D2D", dict.fromkeys((200, 300), (10, 0, 5, 43, 44)), {"dram": 0.87}, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_shares_while_the_kernel_ran(name: str, tmp_path: Path) -> None:
    text, values, shares, reasons = BY_HAND[name]
    (found,) = counters(tmp_path, text, values)
    assert {one: getattr(found, one) for one in shares} == {one: approx(value) for one, value in shares.items()}
    assert len(found.missing) == reasons


def test_copies_from_the_host_do_not_count(tmp_path: Path) -> None:
    assert counters(tmp_path, "copy 10..14 -> 100..300", {200: (10, 0, 5, 43, 44)}) == []


def test_the_clock_while_the_kernels_ran(tmp_path: Path) -> None:
    """100 us at 1800 MHz and 50 us at 1500; what it was while the GPU was idle does not count."""
    clocks: Any = {end: (50, mhz * 1_000_000) for end, mhz in ((100, 345), (200, 1800), (300, 1500), (400, 345))}
    names = ["SMs Active", "GPC Clock Frequency [MHz]"]
    (found,) = counters(tmp_path, KERNEL.format(100, 250), clocks, names=names)
    assert found.sm_clock_mhz == approx(1700)


def test_two_stages_in_one_period_share_it_by_time_within_what_is_possible(tmp_path: Path) -> None:
    """10 us of the second stage in a period that the first has 90 us of; the rest of it in a period of its own."""
    text = "launch 10..14 -> 100..190; launch 510..514 -> 190..300"
    values = {200: (100, 50, 10, 0, 0), 300: (100, 20, 10, 0, 0)}
    first, second = (counters(tmp_path, text, values, stage=name, stages=TWO)[0] for name in ("first", "second"))
    assert (first.tensor, second.tensor) == (approx(0.5), approx((0.5 * 10 + 0.2 * 100) / 110))
    assert first.uncertainty is not None
    assert second.uncertainty is not None
    assert first.uncertainty > 0.05  # the 10 us may have been anything
    assert 0.03 < second.uncertainty < 0.10


def test_other_work_at_the_same_time_is_named(tmp_path: Path) -> None:
    text = "launch 10..14 -> 100..300; launch 510..514 -> 200..300 stream=8"
    values = dict.fromkeys((200, 300), (90, 60, 20, 30, 10))
    (first,) = counters(tmp_path, text, values, stage="first", stages=TWO)
    assert any("50 %" in reason for reason in first.missing)


@pytest.mark.parametrize("is_first_read", [True, False])
def test_each_gpu_has_its_own_readings(is_first_read: bool, tmp_path: Path) -> None:
    text = "launch 10..14 -> 100..300; launch 20..24 -> 100..300 device=1"
    values: list[Values] = [dict.fromkeys((200, 300), (share,) * 5) for share in (30, 90)]
    found = counters(tmp_path, text, values[0] if is_first_read else {}, values[1], gpus=2)
    assert [(each.gpu, each.sm_active) for each in found] == [
        (0, approx(0.3) if is_first_read else None),
        (1, approx(0.9)),
    ]


PERIOD = 20
"""Units of 1 us of the simulated GPU below."""


@st.composite
def simulated(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, float]], int]:
    """Kernels one after another, each with its stage (0 or 1) and rate; and the end of all."""
    kernels, at = [], draw(st.integers(1, 30))
    for _ in range(draw(st.integers(1, 25))):
        length = draw(st.integers(1, 60))
        kernels.append((at, at + length, draw(st.integers(0, 1)), draw(st.floats(0, 1))))
        at += length + draw(st.integers(0, 40))
    return kernels, -(-at // PERIOD) * PERIOD


@given(simulated(), st.sampled_from([round, int]))
def test_the_true_share_is_in_the_range(
    tmp_path_factory: pytest.TempPathFactory, gpu: tuple[list[tuple[int, int, int, float]], int], how: Any
) -> None:
    kernels, end = gpu
    builder = TraceBuilder(gpu=False)
    builder.row("TARGET_INFO_GPU", **({"id": 0} | H200))
    begin = {0: 1, 1: US * (end // 2)}
    builder.add(f"batch_0 0..{US * (end + 2)}")
    for stage, name in enumerate("ab"):
        builder.add(f"{name} {begin[stage] - 1}..{begin[stage] + 10 * len(kernels)}")
    rate, of = np.zeros(end), np.full(end, -1)
    for number, (start, stop, stage, share) in enumerate(kernels):
        rate[start:stop], of[start:stop] = share, stage
        call = begin[stage] + 10 * number
        builder.add(f"launch {call}..{call + 1} -> {US * start}..{US * stop}")
    type_id = builder.gpu_metric_names(["SMs Active [Throughput %]"])
    for at in range(0, end, PERIOD):
        builder.gpu_metric_reading(US * at, [how(100 * rate[at : at + PERIOD].mean())], type_id=type_id)
    diagnosis = diagnose(find_evidence(Pass(builder.analysis(tmp_path_factory.mktemp("t")))))
    for stage, name in enumerate("ab"):
        found = stage_of(diagnosis, name).counters
        mine = of == stage
        assert len(found) == mine.any()
        for each in found:
            if each.sm_active is not None:
                assert each.uncertainty is not None
                assert abs(each.sm_active - rate[mine].mean()) <= 2 * each.uncertainty + 1e-9
            if end > PERIOD:  # of one reading no period is known
                assert each.seconds == pytest.approx(mine.sum() * 1e-6)
