"""What charts of a report show: batches over time, histograms, timelines of single batches, and the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.stages.charts import (
    batch_series,
    batch_timelines,
    histogram,
    rest_of_batches,
    spans_of,
    typical_best_worst,
)
from perfharness.model.result import BatchLoop
from tests.support.trace_builder import MS, Recorded, TraceBuilder


def loop(*values_ms: float, warmup: int = 0) -> BatchLoop:
    start = np.arange(len(values_ms), dtype=np.int64) * 1000 * MS
    end = start + (np.asarray(values_ms) * MS).astype(np.int64)
    return BatchLoop(("toy", "batch"), start, end, np.ones(len(values_ms)), np.arange(len(values_ms)) < warmup)


def test_batches_are_themselves_or_groups_that_keep_the_extremes() -> None:
    few = batch_series(loop(3.0, 1.0, 2.0, warmup=1))
    assert (few.batches_per_group, few.first, few.median_ms) == (1, [0, 1, 2], [3.0, 1.0, 2.0])
    assert (few.start_s, few.warmup, few.throttled, few.longest_measured_ms) == ([0.0, 1.0, 2.0], [(0, 1)], None, 2.0)
    many = batch_series(loop(1.0, 5.0, 2.0, 9.0, 4.0), max_points=3)
    assert (many.batches_per_group, many.first, many.median_ms) == (2, [0, 2, 4], [3.0, 5.5, 4.0])
    assert (many.min_ms, many.max_ms) == ([1.0, 2.0, 4.0], [5.0, 9.0, 4.0])
    assert (batch_series(loop()).first, batch_series(loop()).longest_measured_ms) == ([], None)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 10))
def test_spans_hold_every_true_and_are_few(flags: list[bool], most: int) -> None:
    spans = spans_of(np.asarray(flags, dtype=np.bool_), most)
    inside = {place for start, end in spans for place in range(start, end)}
    assert {place for place, flag in enumerate(flags) if flag} <= inside
    assert len(spans) <= most


@given(st.lists(st.floats(0, 1e6) | st.just(float("nan")), max_size=300))
def test_a_histogram_counts_every_known_value_once(values: list[float]) -> None:
    known = [value for value in values if value == value]
    found = histogram(np.asarray(values, dtype=np.float64))
    assert (found is None) == (len(known) < 2)
    if found is not None:
        assert sum(found.counts) + found.beyond == found.values == len(known)
        assert (found.edges_ms[0], found.max_ms) == (min(known), max(known))


def test_one_far_value_does_not_widen_a_histogram() -> None:
    found = histogram(np.asarray([*np.linspace(1.0, 2.0, 50), 1000.0]))
    assert found is not None
    assert (found.beyond, found.max_ms) == (1, 1000.0)
    assert found.edges_ms[-1] <= 10.0


def test_three_batches_without_the_warm_up(tmp_path: Path) -> None:
    """Batches of 50, 4, 3, 9 and 60 ms, each with a stage that ends 1 ms before it; a kernel in the third."""
    builder = Recorded()
    for index, length in enumerate((50, 4, 3, 9, 60)):
        builder.add(f"batch#{index} 0..{length}; infer 0..{length - 1}", 100 * index)
    builder.add("launch 201..201.001 -> 202..205 name=gemm")
    builder.add("launch 450..450.000001 -> 199..201 name=earlier")  # of another batch, meanwhile
    found = {one.which: one for one in batch_timelines(builder.analysis(tmp_path, 1), "proc_0_gpu_0")}
    shown = {which: (one.batch_index, one.cpu_ms) for which, one in found.items()}
    assert shown == {"typical": (1, 4.0), "best": (2, 3.0), "worst": (3, 9.0)}
    best = found["best"]
    assert best.rows == ["batch", "stages 1", "CUDA calls", "GPU 0, stream 7"]
    assert (best.end_ms, best.joined_ms) == (5.0, None)
    assert [(bar.row, bar.name, bar.kind, bar.start_ms, bar.end_ms) for bar in best.bars] == [
        ("batch", "batch", "stage", 0.0, 3.0),
        ("stages 1", "infer", "stage", 0.0, 2.0),
        ("CUDA calls", "cudaLaunchKernel_v7000", "call", 1.0, 1.001),
        ("GPU 0, stream 7", "earlier", "other", 0.0, 1.0),
        ("GPU 0, stream 7", "gemm", "kernel", 2.0, 5.0),
    ]


@pytest.mark.parametrize("count", [400, 5000])
def test_many_events_are_few_bars_all_over_the_batch(tmp_path: Path, count: int) -> None:
    step = 10 / count
    builder = Recorded().add(f"batch#0 0..10; launch 0..{step / 2} -> 0..{step / 2} name=k x{count}+{step}")
    (found,) = batch_timelines(builder.analysis(tmp_path), "p")
    calls = [bar for bar in found.bars if bar.kind == "call"]
    assert len(calls) <= 400
    assert (sum(bar.count for bar in calls), found.joined_ms is None) == (count, count <= 400)
    assert sum(bar.filled * (bar.end_ms - bar.start_ms) for bar in calls) == pytest.approx(5)


def test_ranges_that_overlap_have_rows_of_their_own(tmp_path: Path) -> None:
    text = "batch_0 0..10; task_* 0..5 start_end=1 x2+1"
    analysis = TraceBuilder().add(text, unit=MS).analysis(tmp_path)
    (found,) = batch_timelines(analysis, "p")
    rows = {bar.name: bar.row for bar in found.bars}
    assert rows == {"batch": "batch", "task_0": "stages 1", "task_1": "stages 1 (2)"}
    (rest,) = rest_of_batches(analysis).values()
    assert (rest.values_ms, bool(rest.reason)) == (None, True)


def test_no_batches_and_values_that_coincide(tmp_path: Path) -> None:
    assert batch_timelines(Recorded().add("alone 0..5").analysis(tmp_path), "p") == []
    assert typical_best_worst(np.asarray([5.0])) == {"typical": 0}
    assert typical_best_worst(np.asarray([1.0, 5.0])) == {"typical": 0, "worst": 1}
    assert typical_best_worst(np.asarray([np.nan])) == {}


def test_the_rest_of_batches_is_what_no_stage_has(tmp_path: Path) -> None:
    """Stages of stages count once; batches of the warm-up do not count; those without any stage are all rest."""
    builder = Recorded().add("batch#* 0..8 x4+10")
    for begin in (0, 10, 30):
        builder.add("a 1..4; inside 2..3; b 5..6", begin)
    (rest,) = rest_of_batches(builder.analysis(tmp_path, 1)).values()
    assert rest.values_ms is not None
    assert rest.values_ms.tolist() == [4.0, 8.0]
