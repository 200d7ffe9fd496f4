"""Made traces -> result files; every expectation is computed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.model import conventions
from tests.support.trace_builder import TraceBuilder
from tests.unit.recorded_traces import MS, Recorded

Made = tuple[TraceBuilder, dict[str, Any]]
EXAMPLES: dict[str, tuple[Callable[[], Made], tuple[str, ...]]] = {}


def example(*options: object) -> Callable[[Callable[[], Made]], None]:
    """A trace, and values of `benchmark.json` by their path (D: data, M: mean_data, S: stats_minus_warmup of `toy`);
    `codes`: of its findings, notes included, `keys PATH`: of an object.
    """

    def add(make: Callable[[], Made]) -> None:
        EXAMPLES[make.__name__] = make, tuple(map(str, options))

    return add


def analyze(traces: list[Path], out: Path, *options: str) -> dict[str, Any]:
    """`benchmark.json` of each trace by its name, and `benchmark_mean`."""
    run(["analyze", *map(str, traces), *options, "-o", str(out)])
    found = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/benchmark.json")}
    return {**found, "benchmark_mean": json.loads((out / "benchmark_mean.json").read_text())}


def at(body: dict[str, Any], path: str) -> Any:
    head, _, rest = path.partition("/")
    tree: Any = {**body, "D": body.get("data"), "M": body["mean_data"], "S": body["stats_minus_warmup"]}[head]
    for key in rest.split("/") if rest else ():
        tree = tree[int(key) if isinstance(tree, list) else key]
    return tree


def recorded_loop(count: int, period: float = 100, length: float = 50, **batch: Any) -> Recorded:
    builder = Recorded()
    for index in range(count):
        builder.batch(index, period * index, period * index + length, **batch)
    return builder


@example("-w", 1)
def ancestors() -> Made:
    """CV-CUDA's documentation: 3 batches of two 300 ms stages, one item each, with made-up overheads."""
    builder = Recorded()
    builder.stage("pipeline", 0, 1805)
    for index in range(3):
        begin = 1 + 601 * index
        builder.batch(index, begin, begin + 600)
        builder.stage("stage_1", begin, begin + 300)
        builder.stage("stage_2", begin + 300, begin + 599)
    return builder, {
        "D/toy/pipeline/cpu_time": 1805.0,
        "D/toy/pipeline/total_items": 3,
        "D/toy/pipeline/cpu_time_per_item": 601.666667,
        "D/toy/pipeline/gpu_time": 0.0,
        "D/toy/pipeline/cpu_time_minus_warmup": 605.0,
        "D/toy/pipeline/cpu_time_per_item_minus_warmup": 605.0,
        "D/toy/pipeline/total_items_minus_warmup": 1,
        "D/toy/pipeline/batch_0/warmup": True,
        "D/toy/pipeline/batch_1/warmup": False,
        "D/toy/pipeline/batch_1/stage_2": {
            "cpu_time": 299.0, "gpu_time": 0.0, "gpu_busy_time": 0.0, "count": 1, "cpu_time_per_item": 299.0,
            "gpu_time_per_item": 0.0, "gpu_busy_time_per_item": 0.0,
        },
        "M/toy/pipeline/batch/stage_1/cpu_time": 300.0,
        "M/toy/pipeline/batch/batches": 3,
        "S/toy/pipeline/batch/cpu_time": {
            "count": 1, "mean": 600.0, "std": None, "min": 600.0, "p50": 600.0, "p90": None, "p95": None, "p99": None,
            "max": 600.0,
        },
        "codes": set(),
    }  # fmt: skip


@example()
def gpu_work() -> Made:
    """A batch of 4 items; stage a starts kernels [10, 12] and [13, 14] ms: projected 4, busy 3."""
    builder = Recorded()
    builder.batch(0, 0, 8, items=4)
    builder.stage("a", 0, 4)
    builder.stage("b", 4, 7)
    builder.kernel((1 * MS, 1 * MS + 5), (10 * MS, 12 * MS))
    builder.kernel((2 * MS, 2 * MS + 5), (13 * MS, 14 * MS))
    return builder, {
        "D/toy/batch_0/gpu_time": 4.0, "D/toy/batch_0/gpu_busy_time": 3.0, "D/toy/batch_0/gpu_time_per_item": 1.0,
        "D/toy/batch_0/a/gpu_time": 4.0, "D/toy/batch_0/a/gpu_busy_time_per_item": 0.75,
        "D/toy/batch_0/b/gpu_time": 0.0,
    }  # fmt: skip


@example()
def repeated_names_are_summed() -> Made:
    """Each number's mean is over the batches in which the stage occurs."""
    builder = Recorded()
    for index, stages in enumerate([[(0, 2), (3, 5), (6, 8)], [(0, 5)], []]):
        builder.batch(index, 20 * index, 20 * index + 10, items=2)
        for start, end in stages:
            builder.stage("resize", 20 * index + start, 20 * index + end)
    return builder, {
        "D/toy/batch_0/resize/cpu_time": 6.0, "D/toy/batch_0/resize/count": 3,
        "D/toy/batch_0/resize/cpu_time_per_item": 3.0, "M/toy/batch/batches": 3, "M/toy/batch/resize/batches": 2,
        "M/toy/batch/resize/cpu_time": 5.5, "M/toy/batch/resize/count": 2.0,
    }  # fmt: skip


@example("-w", 2)
def warmup_leaves_nothing() -> Made:
    builder = recorded_loop(3)
    builder.stage("pipeline", 0, 500)
    return builder, {
        "D/toy/pipeline/total_items_minus_warmup": 0, "D/toy/pipeline/cpu_time_minus_warmup": None,
        "D/toy/pipeline/cpu_time_per_item_minus_warmup": None, "S/toy/pipeline/batch/cpu_time/mean": None,
        "codes": {"warmup-leaves-nothing"},
    }  # fmt: skip


@example("-w", 1)
def nested_batches() -> Made:
    """Tokens of requests are one loop of their own; what is in a warm-up request is warm-up. All are counted."""
    builder = Recorded()
    for video in range(3):
        builder.batch(video, 200 * video, 200 * video + 190, name="video")
        for frame in range(4):
            start = 200 * video + 40 * frame
            builder.batch(frame, start, start + 30, items=5, name="frame")
            builder.stage("decode", start, start + 10)
    return builder, {
        "D/toy/video_1/total_items": 1, "D/toy/video_1/frame_0/total_items": 5,
        "D/toy/video_1/frame_0/decode/cpu_time_per_item": 2.0, "D/toy/video_0/frame_3/warmup": True,
        "D/toy/video_1/frame_0/warmup": False, "S/toy/video/cpu_time/count": 1, "S/toy/video/frame/cpu_time/count": 4,
        "M/toy/video/frame/batches": 12,
    }  # fmt: skip


@example()
def deleted_ranges_leave_with_all_below_them() -> Made:
    builder = recorded_loop(2)
    builder.stage("stage", 110, 120)
    builder.inside(conventions.MARK_DELETE, 150)
    return builder, {"keys D/toy": {"batch_0", "total_items", "total_items_minus_warmup"}, "M/toy/batch/batches": 1}


@example()
def tasks_do_not_mix() -> Made:
    """Two tasks whose ranges overlap without nesting, and a range of the thread around them."""
    builder = Recorded()
    builder.stage("outer", 0, 100, category="io")
    builder.batch(0, 30, 60, lane=1, items=3)
    builder.stage("await", 35, 55, lane=1)
    builder.batch(1, 40, 80, lane=2, items=4)
    return builder, {
        "D/toy/batch_0/await/cpu_time": 20.0, "D/toy/batch_1/total_items": 4, "M/toy/batch/await/batches": 1,
        "outside_batches/0/path": ["toy", "outer"],
    }  # fmt: skip


@example()
def ranges_of_others_inside_batches_are_stages() -> Made:
    """Plain NVTX and another recorder; outside of batches they are left out, or the other recorder's."""
    builder = Recorded()
    builder.declare("library")
    builder.stage("pipeline", 0, 300)
    builder.range("setup", 0, 5 * MS)
    builder.stage("open", 1, 3, recorder="library")
    for index in range(2):
        begin = 100 + 100 * index
        builder.batch(index, begin, begin + 50)
        builder.range("decode", (begin + 1) * MS, (begin + 21) * MS, domain="nvimgcodec")
        builder.stage("parse", begin + 2, begin + 12, recorder="library")
        builder.stage("infer", begin + 30, begin + 40)
        builder.kernel(((begin + 3) * MS, (begin + 4) * MS), ((begin + 60) * MS, (begin + 67) * MS))
    return builder, {
        "M/toy/pipeline/batch/decode/cpu_time": 20.0, "M/toy/pipeline/batch/decode/gpu_time": 7.0,
        "M/toy/pipeline/batch/decode/parse/cpu_time": 10.0, "M/toy/pipeline/batch/infer/cpu_time": 10.0,
        "outside_batches/0/path": ["library", "open"], "codes": {"ranges-of-other-domains"},
    }  # fmt: skip


@example()
def ranges_of_others_are_in_the_only_task_with_a_batch_around_them() -> Made:
    builder = Recorded()
    builder.batch(0, 0, 50, lane=1)
    builder.batch(1, 40, 90, lane=2)
    for begin in (10, 42, 60):
        builder.range("step", begin * MS, (begin + 5) * MS)
    return builder, {
        "M/toy/batch/step/count": 1.0, "M/toy/batch/step/batches": 2, "codes": {"ranges-of-other-domains"},
    }  # fmt: skip


@example()
def batches_without_items() -> Made:
    builder = Recorded()
    builder.stage("pipeline", 0, 100)
    builder.batch(0, 0, 10, items=None)
    builder.batch(1, 20, 30, items=0)
    builder.inside(conventions.MARK_ITEMS, 50, payload=99)
    return builder, {
        "D/toy/pipeline/batch_0/total_items": None, "D/toy/pipeline/batch_0/cpu_time_per_item": None,
        "D/toy/pipeline/batch_1/total_items": 0, "D/toy/pipeline/batch_1/cpu_time_per_item": None,
        "D/toy/pipeline/total_items": None, "codes": {"batch-without-items"},
    }  # fmt: skip


@example()
def a_recorder_without_ranges() -> Made:
    return Recorded(), {"D": {}, "codes": {"no-ranges"}}


@example()
def a_range_never_closed() -> Made:
    builder = Recorded()
    builder.stage("pipeline", 0, None)
    builder.batch(0, 0, 50)
    return builder, {"D/toy/pipeline/cpu_time": 50.0, "codes": {"range-never-closed"}}


@example()
def names_that_clash() -> Made:
    """A stage that is named like a number, like a batch, or like a batch with its index has a suffix."""
    builder = recorded_loop(1)
    builder.stage("count", 0, 5)
    builder.stage("batch", 10, 17)
    builder.stage("batch_3", 20, 29)
    builder.batch(-4, 30, 33, name="tile")
    return builder, {
        "D/toy/batch_0/count": 1, "D/toy/batch_0/count (range)/cpu_time": 5.0,
        "M/toy/batch/batch (range)/cpu_time": 7.0, "M/toy/batch/batch_3 (range)/cpu_time": 9.0,
        "D/toy/batch_0/tile_-4/cpu_time": 3.0,
    }  # fmt: skip


@example("--domain", "nvtx", "--batch-pattern", r"step (\d+)")
def plain_nvtx() -> Made:
    builder = TraceBuilder()
    builder.range("main", 0, 100 * MS, text=True)
    for index in range(2):
        builder.range(f"Step {index}", (10 + 40 * index) * MS, (30 + 40 * index) * MS)
        builder.range("infer", (12 + 40 * index) * MS, (20 + 40 * index) * MS, text=True)
    builder.range("library", 12 * MS, 15 * MS, domain="cuDNN")
    return builder, {
        "D/nvtx/main/Step_1/infer/cpu_time": 8.0, "M/nvtx/main/Step/infer/cpu_time": 8.0, "keys D": {"nvtx"},
    }  # fmt: skip


@example("--batch-pattern", "request")
def plain_batches_without_a_number() -> Made:
    builder = TraceBuilder()
    for start in (20, 0, 40):
        builder.range("request", start * MS, (start + 5 + start // 20) * MS)
    return builder, {"D/nvtx/request_0/cpu_time": 5.0, "D/nvtx/request_2/cpu_time": 7.0}


@example()
def an_index_of_more_than_64_bits_is_part_of_the_name() -> Made:
    builder = TraceBuilder()
    for place, name in enumerate(("batch_7", "batch_" + "9" * 40, "batch_²")):
        builder.range(name, 10 * place, 10 * place + 5)
    return builder, {"keys M/nvtx": {"batch", "batch_" + "9" * 40}, "outside_batches/0/path": ["nvtx", "batch_²"]}


@example("--domain", "nope")
def no_such_domain() -> Made:
    return TraceBuilder(), {"codes": {"domain-not-found"}}


@example()
def plain_ranges_are_no_batches() -> Made:
    builder = TraceBuilder()
    builder.range("main", 0, 5 * MS)
    return builder, {"D/nvtx/main/cpu_time": 5.0, "codes": {"no-batches"}}


@example("-w", 1)
def per_item_is_a_ratio_of_totals() -> Made:
    """Batches of 10 ms and of 1 or 64 items: 20 ms and 65 items per pair."""
    builder = Recorded()
    for index in range(6):
        builder.batch(index, 20 * index, 20 * index + 10, items=64 if index % 2 else 1)
        builder.stage("infer", 20 * index, 20 * index + 4)
    return builder, {
        "M/toy/batch/cpu_time_per_item": round(20 / 65, 6), "S/toy/batch/cpu_time_per_item/mean": round(20 / 65, 6),
        "S/toy/batch/cpu_time_per_item/min": 10 / 64, "S/toy/batch/cpu_time_per_item/max": 10.0,
        "S/toy/batch/infer/cpu_time_per_item/mean": round(8 / 65, 6),
    }  # fmt: skip


@example("-w", 1)
def a_wait_at_the_start_barrier() -> Made:
    """
    pipeline  |--------------------------------------------------|  0..1000, 600 of them waited
    batches        |--w--|                        |-1-| |-2-| |-w-|
    waits                 ......................!                      100..700
    """
    builder = Recorded()
    builder.stage("pipeline", 0, 1000)
    builder.stage("before", 20, 30, tid=101)
    builder.stage("elsewhere", 0, 900, tid=101)
    for index, begin in enumerate((10, 700, 800, 900)):
        builder.batch(index, begin, begin + 50)
    builder.mark(conventions.MARK_BARRIER, 700 * MS, domain="perfharness", category="toy", payload=600 * MS)
    return builder, {
        "D/toy/pipeline/cpu_time": 400.0, "D/toy/pipeline/cpu_time_minus_warmup": 300.0,
        "D/toy/pipeline/cpu_time_per_item": 100.0, "D/toy/elsewhere/cpu_time": 900.0,
        "codes": {"start-barrier-wait", "start-barrier-wait-of-other-threads"},
    }  # fmt: skip


@example("-w", 1)
def warmup_batches_that_overlap() -> Made:
    builder = TraceBuilder()
    builder.range("run", 0, 10 * MS)
    for index, (start, end) in enumerate([(1, 8), (2, 9), (3, 9.5)]):
        builder.range(f"batch_{index}", int(start * MS), int(end * MS), start_end=True)
    return builder, {"D/nvtx/run/cpu_time_minus_warmup": None}


@example()
def a_long_pause() -> Made:
    """Batches every 20 ms, but for a pause of 65 ms in 165 ms."""
    builder = Recorded()
    for index, begin in enumerate((0, 20, 40, 60, 140, 160)):
        builder.batch(index, begin, begin + 15)
    return builder, {"codes": {"long-pause"}}


@pytest.mark.parametrize("name", EXAMPLES)
def test_numbers_of_an_example(name: str, tmp_path: Path) -> None:
    make, options = EXAMPLES[name]
    builder, expected = make()
    body = analyze([builder.write(tmp_path / "t.sqlite")], tmp_path / "out", *options)["t"]
    found = {finding["code"] for finding in body["meta"]["findings"]} - {
        "batch-without-items",
        "negative-without-warmup",
    }
    for path, value in expected.items():
        if path == "codes":
            found |= {"batch-without-items"} & value
            assert found == value
        elif path.startswith("keys "):
            assert set(at(body, path.removeprefix("keys "))) == value
        else:
            assert at(body, path) == value, path


@pytest.mark.parametrize(
    ("cuda_traced", "gpu", "expected"),
    [(True, True, 0.0), (False, False, 0.0), (False, True, None), (None, True, None)],
)
def test_gpu_time_is_zero_without_gpu_work_and_null_if_it_was_not_traced(
    tmp_path: Path, cuda_traced: bool | None, gpu: bool, expected: float | None
) -> None:
    builder = Recorded(cuda_traced=cuda_traced, gpu=gpu)
    builder.batch(0, 0, 1)
    body = analyze([builder.write(tmp_path / "t.sqlite")], tmp_path / "out")["t"]
    assert (at(body, "D/toy/batch_0/gpu_time"), at(body, "D/toy/batch_0/cpu_time")) == (expected, 1.0)
    assert at(body, "S/toy/batch/gpu_time/mean") == expected
    assert ("gpu-not-traced" in {one["code"] for one in body["meta"]["findings"]}) == (expected is None)


def test_means_of_several_processes_are_over_all_batches(tmp_path: Path) -> None:
    """One process: 3 batches of 10 ms and 1 item, a stage in one. Other: a batch of 30 ms and 97 items."""
    one, other = recorded_loop(3, length=10), Recorded()
    one.stage("infer", 0, 4)
    one.stage("run", 0, 300)
    other.stage("run", 0, 100)
    other.batch(0, 0, 30, items=97)
    traces = [one.write(tmp_path / "a.sqlite"), other.write(tmp_path / "b.sqlite")]
    mean = analyze(traces, tmp_path / "out")["benchmark_mean"]
    expected = {
        "M/toy/run/batch/cpu_time": 15.0, "M/toy/run/batch/cpu_time_per_item": 0.6, "M/toy/run/batch/batches": 2,
        "M/toy/run/batch/infer/cpu_time_per_item": 4.0, "S/toy/run/batch/cpu_time/count": 4,
        "S/toy/run/batch/cpu_time/mean": 15.0, "S/toy/run/batch/cpu_time_per_item/mean": 0.6,
        "mean_all_batches/toy/run/cpu_time": 200.0, "mean_all_batches/toy/run/cpu_time_per_item": 4.0,
        "mean_all_batches/toy/run/batch_0/cpu_time": 20.0, "mean_all_batches/toy/run/batch_0/infer/count": 1,
        "mean_all_batches/toy/run/batch_2/cpu_time": 10.0,
    }  # fmt: skip
    assert {path: at(mean, path) for path in expected} == expected
