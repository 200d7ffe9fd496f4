"""Counters of a stage from the trace's readings: worked by hand, and against a GPU simulated moment by moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.model.diagnosis import GpuCounters
from perfharness.model.trace import CopyKind
from perfharness.trace import open_trace
from tests.support.made_batches import US, Batch, diagnosed, stage_of
from tests.support.trace_builder import H200, TraceBuilder

NAMES = [
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "Compute Warps in Flight [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
]
TWO = {"first": (0.0, 500.0), "second": (500.0, 1000.0)}


def readings(batch: Batch, values: dict[int, tuple[int, int, int, int, int]], gpu: int = 0) -> None:
    """One for every 100 us of a batch, by the end of the period; of zeros where it has no values."""
    names = batch.builder.gpu_metric_names(NAMES, gpu=gpu)
    for end in range(100, 1100, 100):
        batch.builder.gpu_metric_reading(batch.at(end - 100), values.get(end, (0, 0, 0, 0, 0)), type_id=names)


def counters(path: Path, content: Any, stage: str = "stage", **more: Any) -> list[GpuCounters]:
    return stage_of(diagnosed(path, content, **more), stage).counters


def approx(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, abs=1e-9)


BY_HAND: dict[str, tuple[tuple[float, float], dict[int, tuple[int, int, int, int, int]], dict[str, float | None]]] = {
    # name: (when the kernel ran, readings by the end of their period, shares)
    "whole periods": (
        (100, 300), {200: (90, 60, 20, 30, 10), 300: (100, 80, 30, 20, 10)},
        {"sm_active": 0.95, "tensor": 0.7, "occupancy": 0.25, "dram": 0.35, "seconds": 12 * 200e-6},
    ),
    # 50 us at 80 % of tensor read 40 % over 100 us
    "parts of periods": (
        (150, 250), dict.fromkeys((200, 300), (50, 40, 10, 0, 0)), {"sm_active": 1.0, "tensor": 0.8, "occupancy": 0.2},
    ),
    # 2 us in 100: a whole per cent stands for half of what a kernel can do
    "too short": (
        (120, 122), {200: (2, 1, 0, 0, 0)},
        {"sm_active": None, "tensor": None, "dram": None, "uncertainty": None, "seconds": 12 * 2e-6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_shares_while_the_kernel_ran(name: str, tmp_path: Path) -> None:
    (start, end), values, shares = BY_HAND[name]

    def content(batch: Batch) -> None:
        batch.kernel(10, start, end)
        readings(batch, values)

    (found,) = counters(tmp_path, content)
    assert {one: getattr(found, one) for one in shares} == {one: approx(value) for one, value in shares.items()}
    assert len(found.missing) == (5 if name == "too short" else 1)


def test_the_clock_while_the_kernels_ran(tmp_path: Path) -> None:
    """100 us at 1800 MHz and 50 us at 1500; what it was while the GPU was idle does not count."""

    def content(batch: Batch) -> None:
        batch.kernel(10, 100, 250)
        names = batch.builder.gpu_metric_names(["SMs Active", "GPC Clock Frequency [MHz]"])
        for end, clock in ((100, 345), (200, 1800), (300, 1500), (400, 345)):
            batch.builder.gpu_metric_reading(batch.at(end - 100), (50, clock * 1_000_000), type_id=names)

    (found,) = counters(tmp_path, content)
    assert found.sm_clock_mhz == approx(1700)


@pytest.mark.parametrize(("kind", "has"), [(CopyKind.HOST_TO_DEVICE, False), (CopyKind.DEVICE_TO_DEVICE, True)])
def test_of_copies_only_those_inside_the_gpu_count(tmp_path: Path, kind: CopyKind, has: bool) -> None:
    def content(batch: Batch) -> None:
        batch.copy((10, 14), (100, 300), kind=kind)
        readings(batch, {200: (10, 0, 5, 43, 44), 300: (10, 0, 5, 43, 44)})

    found = counters(tmp_path, content)
    assert len(found) == has
    assert all(each.dram == approx(0.87) for each in found)


def test_two_stages_in_one_period_share_it_by_time_within_what_is_possible(tmp_path: Path) -> None:
    """10 us of the second stage in a period that the first has 90 us of; the rest of it in a period of its own."""

    def content(batch: Batch) -> None:
        batch.kernel(10, 100, 190)
        batch.kernel(510, 190, 300)
        readings(batch, {200: (100, 50, 10, 0, 0), 300: (100, 20, 10, 0, 0)})

    first, second = (counters(tmp_path, content, name, stages=TWO)[0] for name in TWO)
    assert (first.tensor, second.tensor) == (approx(0.5), approx((0.5 * 10 + 0.2 * 100) / 110))
    assert first.uncertainty is not None
    assert second.uncertainty is not None
    assert abs(first.tensor - 0.5) <= first.uncertainty  # type: ignore[operator]
    assert first.uncertainty > 0.05  # the 10 us may have been anything
    assert 0.03 < second.uncertainty < 0.10


def test_other_work_at_the_same_time_is_named(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.kernel(10, 100, 300, stream=7)
        batch.kernel(510, 200, 300, stream=8)
        readings(batch, {200: (90, 60, 20, 30, 10), 300: (90, 60, 20, 30, 10)})

    (first,) = counters(tmp_path, content, "first", stages=TWO)
    assert any("50 %" in reason for reason in first.missing)


@pytest.mark.parametrize(("sampled", "active"), [((1, 0), [0.3, 0.9]), ((1,), [None, 0.9])])
def test_each_gpu_has_its_own_readings(sampled: tuple[int, ...], active: list[float | None], tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        for gpu in (0, 1):
            batch.kernel(10 + 10 * gpu, 100, 300, device=gpu)
        for gpu in sampled:
            readings(batch, dict.fromkeys((200, 300), (90 if gpu else 30,) * 5), gpu=gpu)

    found = counters(tmp_path, content, gpus=2)
    assert [(each.gpu, each.sm_active) for each in found] == list(enumerate(map(approx, active)))


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


@given(simulated(), st.sampled_from(["round", "floor"]))
def test_the_true_share_is_in_the_range(
    tmp_path_factory: pytest.TempPathFactory, gpu: tuple[list[tuple[int, int, int, float]], int], how: str
) -> None:
    kernels, end = gpu
    rate, of = np.zeros(end), np.full(end, -1)
    for start, stop, stage, share in kernels:
        rate[start:stop], of[start:stop] = share, stage
    builder = TraceBuilder(gpu=False)
    builder.row("TARGET_INFO_GPU", **({"id": 0} | H200))
    type_id = builder.gpu_metric_names(["SMs Active [Throughput %]"])
    for at in range(PERIOD, end + 1, PERIOD):
        percent = 100 * rate[at - PERIOD : at].mean()
        builder.gpu_metric_reading(
            US * (at - PERIOD), [round(percent) if how == "round" else int(percent)], type_id=type_id
        )
    builder.range("batch_0", 0, US * (end + 2))
    begin = {0: 1, 1: US * (end // 2)}
    for stage, name in enumerate(("a", "b")):
        builder.range(name, begin[stage] - 1, begin[stage] + 10 * len(kernels))
    for number, (start, stop, stage, _) in enumerate(kernels):
        call = begin[stage] + 10 * number
        builder.kernel((call, call + 1), (US * start, US * stop))
    trace = open_trace(builder.write(tmp_path_factory.mktemp("t") / "t.sqlite"))
    diagnosis = diagnose(find_evidence(Pass(Analysis(trace, AnalysisOptions(0)))))
    for stage, name in enumerate(("a", "b")):
        found = stage_of(diagnosis, name).counters
        mine = of == stage
        if not mine.any():
            assert found == []
            continue
        (each,) = found
        if each.sm_active is not None:
            assert each.uncertainty is not None
            assert abs(each.sm_active - rate[mine].mean()) <= 2 * each.uncertainty + 1e-9
        covered = sum(mine[at : at + PERIOD].sum() for at in range(0, end, PERIOD))
        if end > PERIOD:  # of one reading no period is known
            assert each.seconds == pytest.approx(covered * 1e-6)
