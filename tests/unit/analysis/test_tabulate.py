"""From built traces to the trees of benchmark.json; every expectation is computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages.combine import combine, mean_of_trees
from perfharness.analysis.stages.tabulate import tabulate
from perfharness.model import conventions
from perfharness.model.result import ProcessResult
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.recorded_traces import MS, Recorded


def result_of(builder: TraceBuilder, tmp_path: Path, warmup: int = 0, **options: Any) -> ProcessResult:
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    return tabulate(Analysis(trace, AnalysisOptions(warmup, **options)))


def codes(result: ProcessResult) -> set[str]:
    return {finding.code for finding in result.findings if finding.severity.value != "note"}


def ancestors_example() -> Recorded:
    """The example of CV-CUDA's documentation: 3 batches of two 300 ms stages, one item each, with made-up overheads."""
    builder = Recorded()
    builder.stage("pipeline", 0, 1805)
    for index in range(3):
        begin = 1 + 601 * index
        builder.batch(index, begin, begin + 600)
        builder.stage("stage_1", begin, begin + 300)
        builder.stage("stage_2", begin + 300, begin + 599)
    return builder


def test_the_ancestor_s_example(tmp_path: Path) -> None:
    result = result_of(ancestors_example(), tmp_path, warmup=1)
    pipeline = result.data["toy"]["pipeline"]
    numbers = {key: value for key, value in pipeline.items() if not isinstance(value, dict)}
    assert numbers == {
        "cpu_time": 1805.0, "gpu_time": 0.0, "gpu_busy_time": 0.0, "count": 1, "total_items": 3,
        "cpu_time_per_item": pytest.approx(601.666667), "gpu_time_per_item": 0.0, "gpu_busy_time_per_item": 0.0,
        "cpu_time_minus_warmup": 605.0, "gpu_time_minus_warmup": 0.0, "gpu_busy_time_minus_warmup": 0.0,
        "cpu_time_per_item_minus_warmup": 605.0, "gpu_time_per_item_minus_warmup": 0.0,
        "gpu_busy_time_per_item_minus_warmup": 0.0, "total_items_minus_warmup": 1,
    }  # fmt: skip
    assert [pipeline[f"batch_{i}"]["warmup"] for i in range(3)] == [True, False, True]
    assert pipeline["batch_1"]["stage_2"] == {
        "cpu_time": 299.0, "gpu_time": 0.0, "gpu_busy_time": 0.0, "count": 1,
        "cpu_time_per_item": 299.0, "gpu_time_per_item": 0.0, "gpu_busy_time_per_item": 0.0,
    }  # fmt: skip
    assert result.mean_data["toy"]["pipeline"]["batch"]["stage_1"]["cpu_time"] == 300.0
    assert result.mean_data["toy"]["pipeline"]["batch"]["batches"] == 3
    statistics = result.stats_minus_warmup["toy"]["pipeline"]["batch"]["cpu_time"]
    assert statistics == {
        "count": 1, "mean": 600.0, "std": None, "min": 600.0, "p50": 600.0, "p90": None, "p95": None, "p99": None,
        "max": 600.0,
    }  # fmt: skip
    assert codes(result) == set()


def test_gpu_work_is_projected_per_stage_and_item(tmp_path: Path) -> None:
    """Batch of 4 items; stage a starts kernels [10, 12] and [13, 14] ms: projected 4, busy 3."""
    builder = Recorded()
    builder.batch(0, 0, 8, items=4)
    builder.stage("a", 0, 4)
    builder.stage("b", 4, 7)
    builder.kernel((1 * MS, 1 * MS + 5), (10 * MS, 12 * MS))
    builder.kernel((2 * MS, 2 * MS + 5), (13 * MS, 14 * MS))
    batch = result_of(builder, tmp_path).data["toy"]["batch_0"]
    assert (batch["gpu_time"], batch["gpu_busy_time"], batch["gpu_time_per_item"]) == (4.0, 3.0, 1.0)
    assert (batch["a"]["gpu_time"], batch["a"]["gpu_busy_time_per_item"]) == (4.0, 0.75)
    assert (batch["b"]["gpu_time"], batch["b"]["gpu_busy_time"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("cuda_traced", "gpu", "expected"),
    [(True, True, 0.0), (False, False, 0.0), (False, True, None), (None, True, None)],
)
def test_gpu_time_is_zero_where_there_was_none_and_null_where_it_was_not_traced(
    tmp_path: Path, cuda_traced: bool | None, gpu: bool, expected: float | None
) -> None:
    builder = Recorded(cuda_traced=cuda_traced, gpu=gpu)
    builder.batch(0, 0, 1)
    result = result_of(builder, tmp_path)
    assert result.data["toy"]["batch_0"]["gpu_time"] == expected
    assert result.data["toy"]["batch_0"]["cpu_time"] == 1.0
    assert ("gpu-not-traced" in codes(result)) == (expected is None)
    if expected is None:
        assert result.stats_minus_warmup["toy"]["batch"]["gpu_time"]["mean"] is None


def test_a_repeated_name_is_summed_and_counted(tmp_path: Path) -> None:
    builder = Recorded()
    builder.batch(0, 0, 10, items=2)
    for start in (0, 3, 6):
        builder.stage("resize", start, start + 2)
    builder.batch(1, 20, 30, items=2)
    builder.stage("resize", 20, 25)
    result = result_of(builder, tmp_path)
    resize = result.data["toy"]["batch_0"]["resize"]
    assert (resize["cpu_time"], resize["count"], resize["cpu_time_per_item"]) == (6.0, 3, 3.0)
    mean = result.mean_data["toy"]["batch"]["resize"]
    assert (mean["cpu_time"], mean["count"], mean["batches"]) == (5.5, 2.0, 2)


def test_the_mean_is_over_the_batches_in_which_a_stage_occurs(tmp_path: Path) -> None:
    builder = Recorded()
    for index in range(4):
        builder.batch(index, 10 * index, 10 * index + 8)
    builder.stage("sometimes", 10, 14)
    mean = result_of(builder, tmp_path).mean_data["toy"]["batch"]
    assert (mean["batches"], mean["sometimes"]["batches"], mean["sometimes"]["cpu_time"]) == (4, 1, 4.0)


def test_warmup_leaves_nothing(tmp_path: Path) -> None:
    result = result_of(ancestors_example(), tmp_path, warmup=2)
    pipeline = result.data["toy"]["pipeline"]
    assert pipeline["total_items_minus_warmup"] == 0
    assert pipeline["cpu_time_minus_warmup"] is None
    assert pipeline["cpu_time_per_item_minus_warmup"] is None
    assert result.stats_minus_warmup["toy"]["pipeline"]["batch"]["cpu_time"]["mean"] is None
    assert codes(result) == {"warmup-leaves-nothing"}


def test_each_thread_s_batches_are_a_loop(tmp_path: Path) -> None:
    """No range around the batches: two threads, two loops, so the first and the last of each are the warm-up."""
    builder = Recorded()
    for index in range(6):
        builder.batch(index, 10 * index, 10 * index + 12, tid=1 + index % 2)
    result = result_of(builder, tmp_path, warmup=1)
    warm = [result.data["toy"][f"batch_{i}"]["warmup"] for i in range(6)]
    assert warm == [True, True, False, False, True, True]
    assert result.data["toy"]["total_items_minus_warmup"] == 2


def test_each_worker_s_own_loop_has_its_own_warmup(tmp_path: Path) -> None:
    builder = Recorded()
    for tid in (1, 2):
        builder.stage("worker", 0, 100, tid=tid)
        for index in range(3):
            builder.batch(index, 10 + 20 * index, 25 + 20 * index, items=2, tid=tid)
    result = result_of(builder, tmp_path, warmup=1)
    worker = result.data["toy"]["worker"]
    assert (worker["count"], worker["cpu_time"], worker["total_items"]) == (2, 200.0, 12)
    assert (worker["cpu_time_minus_warmup"], worker["total_items_minus_warmup"]) == (140.0, 4)
    assert worker["batch_0"]["count"] == 2
    assert worker["batch_0"]["cpu_time_per_item"] == 30.0 / 4


def test_batches_inside_batches(tmp_path: Path) -> None:
    """Videos of frames: the frames of each video are a loop; what is in a warm-up video is warm-up."""
    builder = Recorded()
    for video in range(3):
        builder.batch(video, 200 * video, 200 * video + 190, items=1, name="video")
        for frame in range(4):
            start = 200 * video + 40 * frame
            builder.batch(frame, start, start + 30, items=5, name="frame")
            builder.stage("decode", start, start + 10)
    result = result_of(builder, tmp_path, warmup=1)
    videos = result.data["toy"]
    assert videos["video_1"]["total_items"] == 1
    assert videos["video_1"]["frame_0"]["total_items"] == 5
    assert videos["video_1"]["frame_0"]["decode"]["cpu_time_per_item"] == 2.0
    assert [videos["video_0"][f"frame_{i}"]["warmup"] for i in range(4)] == [True] * 4
    assert [videos["video_1"][f"frame_{i}"]["warmup"] for i in range(4)] == [True, False, False, True]
    statistics = result.stats_minus_warmup["toy"]["video"]
    assert statistics["cpu_time"]["count"] == 1
    assert statistics["frame"]["cpu_time"]["count"] == 2
    assert statistics["frame"]["decode"]["cpu_time"]["mean"] == 10.0


def test_deleted_ranges_leave_with_all_below_them(tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("pipeline", 0, 100)
    builder.batch(0, 10, 20)
    builder.batch(1, 30, 60)
    builder.stage("stage", 35, 40)
    builder.inside(conventions.MARK_DELETE, 60)
    result = result_of(builder, tmp_path)
    pipeline = result.data["toy"]["pipeline"]
    assert "batch_1" not in pipeline
    assert pipeline["total_items"] == 1
    assert "stage" not in result.mean_data["toy"]["pipeline"]["batch"]


def test_recorders_and_lanes_do_not_mix(tmp_path: Path) -> None:
    """Two recorders on one thread, and two tasks whose ranges overlap without nesting."""
    builder = Recorded("first")
    builder.declare("second")
    builder.stage("outer", 0, 100)
    builder.stage("inner", 10, 20, recorder="second")
    builder.batch(0, 30, 60, lane=1, items=3)
    builder.stage("await", 35, 55, lane=1)
    builder.batch(1, 40, 80, lane=2, items=4)
    result = result_of(builder, tmp_path)
    assert set(result.data) == {"first", "second"}
    assert result.data["second"] == {"inner": result.data["second"]["inner"]}
    assert result.data["first"]["outer"].keys() & {"inner", "batch_0", "total_items"} == set()
    assert result.data["first"]["batch_0"]["await"]["cpu_time"] == 20.0
    assert result.data["first"]["batch_1"]["total_items"] == 4
    assert "await" not in result.data["first"]["batch_1"]


def test_a_user_s_category_stays_with_its_recorder(tmp_path: Path) -> None:
    builder = Recorded("toy")
    builder.stage("load", 0, 5, category="io")
    assert result_of(builder, tmp_path).data["toy"]["load"]["cpu_time"] == 5.0


def test_a_batch_without_items(tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("pipeline", 0, 100)
    builder.batch(0, 0, 10, items=None)
    builder.batch(1, 20, 30, items=0)
    result = result_of(builder, tmp_path)
    pipeline = result.data["toy"]["pipeline"]
    assert pipeline["batch_0"]["total_items"] is None
    assert pipeline["batch_0"]["cpu_time_per_item"] is None
    assert pipeline["batch_1"]["total_items"] == 0
    assert pipeline["batch_1"]["cpu_time_per_item"] is None
    assert pipeline["total_items"] is None
    assert "batch-without-items" in {finding.code for finding in result.findings}


def test_a_recorder_without_ranges(tmp_path: Path) -> None:
    result = result_of(Recorded(), tmp_path)
    assert result.data == {}
    (finding,) = result.findings
    assert (finding.code, finding.severity.value) == ("no-ranges", "error")


def test_an_item_count_outside_of_any_batch_is_nobody_s(tmp_path: Path) -> None:
    builder = Recorded()
    builder.batch(0, 10, 20, items=3)
    builder.inside(conventions.MARK_ITEMS, 30, payload=99)
    assert result_of(builder, tmp_path).data["toy"]["batch_0"]["total_items"] == 3


def test_a_range_never_closed(tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("pipeline", 0, None)
    builder.batch(0, 10, 20)
    result = result_of(builder, tmp_path)
    assert result.data["toy"]["pipeline"]["cpu_time"] == 20.0
    assert "range-never-closed" in codes(result)


def test_a_range_named_like_a_number_keeps_its_entry(tmp_path: Path) -> None:
    builder = Recorded()
    builder.batch(0, 0, 10)
    builder.stage("count", 0, 5)
    builder.stage("cpu_time", 5, 7)
    batch = result_of(builder, tmp_path).data["toy"]["batch_0"]
    assert (batch["count"], batch["cpu_time"]) == (1, 10.0)
    assert (batch["count (range)"]["cpu_time"], batch["cpu_time (range)"]["cpu_time"]) == (5.0, 2.0)


def test_plain_nvtx_is_read_by_a_pattern(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("main", 0, 100 * MS, text=True)
    for index in range(2):
        builder.range(f"Step {index}", (10 + 40 * index) * MS, (30 + 40 * index) * MS)
        builder.range("infer", (12 + 40 * index) * MS, (20 + 40 * index) * MS, text=True)
    builder.range("library", 12 * MS, 15 * MS, domain="cuDNN")
    without = result_of(builder, tmp_path)
    assert without.data["nvtx"]["main"]["Step 1"]["infer"]["cpu_time"] == 8.0
    assert "no-batches" in codes(without)
    result = result_of(builder, tmp_path, domain="nvtx", batch_pattern=r"step (\d+)")
    assert set(result.data) == {"nvtx"}
    assert result.data["nvtx"]["main"]["Step_1"]["infer"]["cpu_time"] == 8.0
    assert result.mean_data["nvtx"]["main"]["Step"]["infer"]["cpu_time"] == 8.0
    assert codes(result_of(builder, tmp_path, domain="nope")) == {"domain-not-found"}


def test_a_pattern_without_digits_numbers_the_batches(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start in (20, 0, 40):
        builder.range("request", start * MS, (start + 5) * MS)
    data = result_of(builder, tmp_path, batch_pattern="request").data["nvtx"]
    assert [key for key in data if key.startswith("request")] == ["request_0", "request_1", "request_2"]


def test_throughput_is_items_in_the_common_window(tmp_path: Path) -> None:
    """
    Process a: batches of 2 items begin at 10, 20, … 60; process b: of 1 item begin at 18, 28, … 68 (UTC, ms). The last
    of each has no period. Common window 18 ... 60: 4.2 periods of each: 8.4 and 4.2 items in 42 ms.
    """
    results = {}
    for name, first, items in (("a", 10, 2), ("b", 18, 1)):
        builder = Recorded()
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_000 * MS)
        for index in range(6):
            builder.batch(index, first + 10 * index, first + 10 * index + 10, items=items)
        results[name] = result_of(builder, tmp_path)
    run = combine(results)["throughput"]
    assert (run["items"], run["window_ms"], run["periods"]) == (12.6, 42.0, 8.4)
    assert run["items_per_second"] == pytest.approx(300)
    assert run["processes"]["b"]["items_per_second"] == pytest.approx(100)
    assert run["processes"]["b"]["window_ms"] == 50.0
    assert run["processes"]["a"]["share"] == pytest.approx(8.4 / 12.6, abs=1e-6)
    assert run["processes"]["b"]["in_window"] == {"items": 4.2, "items_per_second": 100.0}
    assert run["concurrency"] == {"processes": 2, "mean_processes": 2.0, "all_processes_share": 1.0}
    failed = combine(results, failed={"b": "the process failed"})["throughput"]
    assert failed["items_per_second"] is None
    assert failed["processes"]["b"]["items_per_second"] == pytest.approx(100)


def test_no_common_window_is_null_with_the_reason(tmp_path: Path) -> None:
    results = {}
    for name, first in (("a", 0), ("b", 100)):
        builder = Recorded()
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_000 * MS)
        for index in range(4):
            builder.batch(index, first + 10 * index, first + 10 * index + 10)
        results[name] = result_of(builder, tmp_path)
    run = combine(results)["throughput"]
    assert (run["items_per_second"], run["concurrency"], bool(run["reason"])) == (None, None, True)
    assert [(run["processes"][name]["share"], run["processes"][name]["items_per_second"]) for name in "ab"] == [
        (None, 100.0)
    ] * 2


def test_statistics_are_pooled_and_not_means_of_means(tmp_path: Path) -> None:
    """One batch of 10 ms in one process, three of 2 ms in the other: mean 4, not 6."""
    one, three = Recorded(), Recorded()
    one.batch(0, 0, 10)
    for index in range(3):
        three.batch(index, 10 * index, 10 * index + 2)
    mean = combine({"a": result_of(one, tmp_path), "b": result_of(three, tmp_path)})
    assert mean["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["mean"] == 4.0
    assert mean["mean_data"]["toy"]["batch"]["cpu_time"] == 6.0
    assert mean["mean_all_batches"].to_tree()["toy"]["batch_2"]["cpu_time"] == 2.0


def test_per_item_over_several_batches_is_a_ratio_of_totals(tmp_path: Path) -> None:
    """Batches of 10 ms and of 1 or 64 items, each with a stage of 4 ms: 20 ms a pair of batches, 65 items."""
    builder = Recorded()
    for index in range(6):
        builder.batch(index, 20 * index, 20 * index + 10, items=64 if index % 2 else 1)
        builder.stage("infer", 20 * index, 20 * index + 4)
    result = result_of(builder, tmp_path, warmup=1)
    for tree in (result, combine({"a": result, "b": result})):
        mean = tree.mean_data if isinstance(tree, ProcessResult) else tree["mean_data"]
        stats = tree.stats_minus_warmup if isinstance(tree, ProcessResult) else tree["stats_minus_warmup"]
        for key, time in (("batch", 10), ("infer", 4)):
            numbers, figures = mean["toy"]["batch"], stats["toy"]["batch"]
            if key == "infer":
                numbers, figures = numbers["infer"], figures["infer"]
            per_item = figures["cpu_time_per_item"]
            assert numbers["cpu_time_per_item"] == pytest.approx(2 * time / 65, abs=1e-6)
            assert per_item["mean"] == pytest.approx(2 * time / 65, abs=1e-6)
            assert (per_item["min"], per_item["max"]) == (time / 64, time)
            assert per_item["p50"] == pytest.approx((time / 64 + time) / 2), "over the batches"
        assert "items" not in stats["toy"]["batch"]["infer"]


def test_per_item_over_several_processes_is_a_ratio_of_totals(tmp_path: Path) -> None:
    """One process: 2 batches of 10 ms and 1 item. Other: a batch of 10 ms and 98 items, in which the stage is not."""
    one, other = Recorded(), Recorded()
    for builder, counts in ((one, (1, 1)), (other, (98,))):
        builder.stage("run", 0, 100)
        for index, items in enumerate(counts):
            builder.batch(index, 20 * index, 20 * index + 10, items=items)
    one.stage("infer", 0, 4)
    mean = combine({"a": result_of(one, tmp_path), "b": result_of(other, tmp_path)})
    batch = mean["mean_data"]["toy"]["run"]["batch"]
    assert (batch["cpu_time"], batch["cpu_time_per_item"]) == (10, 0.3)
    assert batch["infer"]["cpu_time_per_item"] == 4
    run = mean["mean_all_batches"].to_tree()["toy"]["run"]
    assert (run["cpu_time_per_item"], run["cpu_time_per_item_minus_warmup"]) == (2, 2)
    assert run["batch_0"]["cpu_time_per_item"] == pytest.approx(20 / 99, abs=1e-6)
    assert run["batch_1"]["cpu_time_per_item"] == 10
    assert run["batch_0"]["infer"]["cpu_time_per_item"] == 4
    assert mean["stats_minus_warmup"]["toy"]["run"]["batch"]["cpu_time_per_item"]["mean"] == 0.3


def test_a_batch_of_no_items_counts_in_the_ratio(tmp_path: Path) -> None:
    builder = Recorded()
    for index, items in enumerate((0, 4, 4, None)):
        builder.batch(index, 20 * index, 20 * index + 10, items=items)
    batch = result_of(builder, tmp_path).stats_minus_warmup["toy"]["batch"]["cpu_time_per_item"]
    assert batch["mean"] is None, "one batch counted none"
    builder = Recorded()
    for index, items in enumerate((0, 4, 4)):
        builder.batch(index, 20 * index, 20 * index + 10, items=items)
    batch = result_of(builder, tmp_path).stats_minus_warmup["toy"]["batch"]["cpu_time_per_item"]
    assert (batch["mean"], batch["p50"]) == (3.75, None)


def test_a_mean_with_something_unmeasured_is_null() -> None:
    def tree(gpu_time: float | None) -> dict[str, Any]:
        return {"x": {"gpu_time": gpu_time, "count": 1, "warmup": True}}

    assert mean_of_trees([tree(1.0), tree(None)]) == tree(None)


def test_a_wait_at_the_start_barrier_is_told_apart_in_the_ranges_around_it(tmp_path: Path) -> None:
    """pipeline  |--------------------------------------------------|  0..1000, 600 of them waited
    batches        |--w--|                        |-1-| |-2-| |-w-|
    waits                 ......................!                      100..700
    other rec   |------------------------------------|                 of another recorder, same thread: 0..800
    """
    builder = Recorded()
    builder.declare("other")
    builder.stage("pipeline", 0, 1000)
    builder.stage("around", 0, 800, recorder="other")
    builder.stage("before", 20, 30, tid=101)
    builder.stage("elsewhere", 0, 900, tid=101)
    for index, begin in enumerate((10, 700, 800, 900)):
        builder.batch(index, begin, begin + 50)
    builder.mark(conventions.MARK_BARRIER, 700 * MS, domain="perfharness", category="toy", payload=600 * MS)
    result = result_of(builder, tmp_path, warmup=1)
    pipeline = result.data["toy"]["pipeline"]
    assert (pipeline["cpu_time"], pipeline["start_barrier_wait"]) == (400.0, 600.0)
    assert pipeline["cpu_time_minus_warmup"] == 300.0
    assert pipeline["cpu_time_per_item"] == 100.0
    assert result.data["other"]["around"]["cpu_time"] == 200.0
    assert result.data["toy"]["elsewhere"]["cpu_time"] == 900.0, "another thread, which did not wait"
    assert all("start_barrier_wait" not in pipeline[f"batch_{index}"] for index in range(4))
    note = next(finding for finding in result.findings if finding.code == "start-barrier-wait")
    assert [name in note.message for name in ("600.0 ms", "pipeline", "around", "elsewhere")] == [True] * 3 + [False]


@pytest.mark.parametrize("category", ["toy", f"toy/{conventions.WITH_WORKERS}"])
def test_what_may_have_been_prepared_during_a_wait_has_no_rate(tmp_path: Path, category: str) -> None:
    """Warm-up at 0 and 20 ms, a wait from 40 to 640 ms, then a batch each 20 ms."""
    builder = Recorded()
    for index, begin in enumerate((0, 20, *range(640, 900, 20))):
        builder.batch(index, begin, begin + 15)
    builder.mark(conventions.MARK_BARRIER, 640 * MS, domain="perfharness", category=category, payload=600 * MS)
    result = result_of(builder, tmp_path, warmup=2)
    (loop,) = result.loops
    assert (loop.barrier_opened_ns, loop.barrier_wait_ns, loop.traced_from_ns) == (640 * MS, 600 * MS, 0)
    assert loop.barrier_has_workers == (category != "toy")
    assert combine({"p": result})["throughput"]["items_per_second"] == (50 if category == "toy" else None)


def test_a_wait_of_other_threads_is_reported_for_what_may_have_waited_for_them(tmp_path: Path) -> None:
    """Two workers wait from 100 to 600 ms and from 200 to 600 ms inside `pipeline` of the main thread."""
    builder = Recorded()
    builder.stage("pipeline", 0, 1000)
    builder.stage("before", 0, 90, tid=103)
    for tid, began in ((101, 100), (102, 200)):
        builder.stage("worker", 10, 900, tid=tid)
        for index, begin in enumerate((20, 600, 700, 800)):
            builder.batch(index, begin, begin + 50, tid=tid)
        waited = {"payload": (600 - began) * MS, "tid": tid}
        builder.mark(conventions.MARK_BARRIER, 600 * MS, domain="perfharness", category="toy", **waited)
    result = result_of(builder, tmp_path, warmup=1)
    assert result.data["toy"]["worker"]["start_barrier_wait"] == 900
    (finding,) = [one for one in result.findings if one.code == "start-barrier-wait-of-other-threads"]
    assert finding.severity.value == "warning"
    assert [name in finding.message for name in ("500.0 ms", "'before'", "'worker'")] == [True, False, False]


def test_a_holder_whose_warmup_batches_overlap_has_no_time_without_them(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range("run", 0, 10 * MS)
    for index, (start, end) in enumerate([(1, 8), (2, 9), (3, 9.5)]):
        builder.range(f"batch_{index}", int(start * MS), int(end * MS), start_end=True)
    result = result_of(builder, tmp_path, warmup=1)
    assert "negative-without-warmup" in codes(result)
    assert result.data["nvtx"]["run"]["cpu_time_minus_warmup"] is None
