"""Timelines of single batches, and the host time that no stage has, on built traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages import batch_timeline
from perfharness.analysis.stages.batch_rest import rest_of_batches
from perfharness.analysis.stages.batch_timeline import Thinned, batch_timelines, typical_best_worst
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.recorded_traces import MS, Recorded


def analysis_of(builder: TraceBuilder, tmp_path: Path, warmup: int = 0) -> Analysis:
    return Analysis(open_trace(builder.write(tmp_path / "t.sqlite")), AnalysisOptions(warmup))


def five_batches() -> Recorded:
    """Batches of 50, 4, 3, 9 and 60 ms, each with a stage that ends 1 ms before it; a kernel in the third."""
    builder = Recorded()
    for index, length in enumerate((50, 4, 3, 9, 60)):
        start = 100 * index
        builder.batch(index, start, start + length)
        builder.stage("infer", start, start + length - 1)
    builder.kernel((201 * MS, 201 * MS + 1000), (202 * MS, 205 * MS), name="gemm")
    builder.kernel((450 * MS, 450 * MS + 1), (199 * MS, 201 * MS), name="earlier")  # of another batch, meanwhile
    return builder


def test_three_batches_without_the_warm_up(tmp_path: Path) -> None:
    found = {one.which: one for one in batch_timelines(analysis_of(five_batches(), tmp_path, 1), "proc_0_gpu_0")}
    assert {which: (one.batch_index, one.cpu_ms) for which, one in found.items()} == {
        "typical": (1, 4.0), "best": (2, 3.0), "worst": (3, 9.0),
    }  # fmt: skip
    best = found["best"]
    assert best.rows == ["batch", "stages 1", "CUDA calls", "GPU 0, stream 7"]
    bars = [(bar.row, bar.name, bar.kind, bar.start_ms, bar.end_ms) for bar in best.bars]
    assert bars == [
        ("batch", "batch", "stage", 0.0, 3.0),
        ("stages 1", "infer", "stage", 0.0, 2.0),
        ("CUDA calls", "cudaLaunchKernel_v7000", "call", 1.0, 1.001),
        ("GPU 0, stream 7", "earlier", "other", 0.0, 1.0),
        ("GPU 0, stream 7", "gemm", "kernel", 2.0, 5.0),
    ]
    assert best.end_ms == 5.0
    assert best.thinned == []
    assert [bar.kind for bar in found["worst"].bars] == ["stage", "stage"]


def test_of_too_many_events_short_neighbours_are_one_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_timeline, "MAX_BARS", 2)
    builder = Recorded()
    builder.batch(0, 0, 10)
    for place, length in enumerate((1, 3, 2)):
        builder.stage(f"s{place}", 3 * place, 3 * place + length)
    (found,) = batch_timelines(analysis_of(builder, tmp_path), "p")
    # By hand: parts of 5 ms would leave three bars (s2 begins in the second part), those of 6.25 ms two.
    assert [(bar.name, bar.start_ms, bar.end_ms, bar.count, bar.sum_ms) for bar in found.bars] == [
        ("batch", 0.0, 10.0, 1, None), ("", 0.0, 8.0, 3, 6.0),
    ]  # fmt: skip
    assert found.thinned == [Thinned("stages", 4, 6.25)]


def test_rows_without_room_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_timeline, "MAX_BARS", 1)
    monkeypatch.setattr(batch_timeline, "MAX_STREAMS", 2)
    builder = Recorded()
    builder.batch(0, 0, 10)
    for stream in (1, 2, 3):  # 3, 2 and 1 ms
        builder.kernel((stream, stream + 1), (MS, (5 - stream) * MS), stream=stream, name="k")
    (found,) = batch_timelines(analysis_of(builder, tmp_path), "p")
    assert [bar.row for bar in found.bars] == ["batch", "CUDA calls", "GPU 0, stream 1"]
    assert found.thinned[-1] == Thinned("GPU operations", 3, 10.0, left_out=2, left_out_ms=3.0)


@pytest.mark.parametrize("count", [400, 401, 5000])
def test_bars_are_all_over_the_batch_where_events_are(tmp_path: Path, count: int) -> None:
    builder, step = Recorded(), 10 * MS // count
    builder.batch(0, 0, 10)
    for place in range(count):  # all equally long
        builder.kernel((place * step, place * step + step // 2), (place * step + 1, place * step + step // 2), name="k")
    (found,) = batch_timelines(analysis_of(builder, tmp_path), "p")
    calls = [bar for bar in found.bars if bar.kind == "call"]
    assert len(calls) <= 400
    assert sum(bar.count for bar in calls) == count
    assert sum(bar.end_ms - bar.start_ms if bar.sum_ms is None else bar.sum_ms for bar in calls) == pytest.approx(
        count * (step // 2) / MS
    )
    assert calls[-1].end_ms == pytest.approx(((count - 1) * step + step // 2) / MS)
    (thinned,) = [one for one in found.thinned if one.what == "CUDA calls"] or [Thinned("CUDA calls", count, 0.0)]
    assert (thinned.all, thinned.left_out, bool(thinned.within_ms)) == (count, 0, count > 400)
    assert all(bar.end_ms - bar.start_ms <= thinned.within_ms + step / MS for bar in calls)


def test_ranges_that_overlap_have_rows_of_their_own(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("batch_0", 0, 10 * MS)
    for place in range(2):
        builder.range(f"task {place}", place * MS, (5 + place) * MS, start_end=True)
    (found,) = batch_timelines(analysis_of(builder, tmp_path), "p")
    assert {bar.name: bar.row for bar in found.bars} == {
        "batch": "batch", "task 0": "stages 1", "task 1": "stages 1 (2)",
    }  # fmt: skip


def test_a_trace_without_batches_has_no_timeline(tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("alone", 0, 5)
    assert batch_timelines(analysis_of(builder, tmp_path), "p") == []


def test_values_that_coincide_are_one() -> None:
    assert typical_best_worst(np.asarray([5.0])) == {"typical": 0}
    assert typical_best_worst(np.asarray([1.0, 5.0])) == {"typical": 0, "worst": 1}
    assert typical_best_worst(np.asarray([np.nan])) == {}


def test_the_rest_of_batches_is_what_no_stage_has(tmp_path: Path) -> None:
    """Stages of stages count once; batches of the warm-up do not count; those without any stage are all rest."""
    builder = Recorded()
    for index in range(4):
        start = 10 * index
        builder.batch(index, start, start + 8)
        if index != 2:
            builder.stage("a", start + 1, start + 4)
            builder.stage("inside", start + 2, start + 3)
            builder.stage("b", start + 5, start + 6)
    found = rest_of_batches(analysis_of(builder, tmp_path, 1))
    (rest,) = found.values()
    assert list(found) == [("toy", "batch")]
    assert rest.values_ms is not None
    assert rest.values_ms.tolist() == [4.0, 8.0]


def test_the_rest_of_batches_whose_stages_overlap_is_not_known(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(2):
        start = 20 * index * MS
        builder.range(f"batch_{index}", start, start + 10 * MS)
        builder.range("x", start + MS, start + 5 * MS, start_end=True)
        builder.range("y", start + 2 * MS, start + 7 * MS, start_end=True)
    (rest,) = rest_of_batches(analysis_of(builder, tmp_path)).values()
    assert rest.values_ms is None
    assert rest.reason
    assert rest_of_batches(analysis_of(Recorded(), tmp_path)) == {}
