"""Made traces -> result files; every expectation is computed by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness import open_run
from perfharness.cli.main import run
from perfharness.model.result import RESERVED_KEYS, last_key, path_text
from tests.support.trace_builder import MS, Recorded, TraceBuilder


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


RECORDED: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: (options, trace in ms, values of `benchmark.json` by their path (D: data, M: mean_data,
    # S: stats_minus_warmup); `codes`: of its findings, notes included; `keys PATH`: of an object)
    # CV-CUDA's documentation: 3 batches of two 300 ms stages, one item each, with made-up overheads.
    "the ancestor's": (
        "-w 1",
        "pipeline 0..1805; batch#* 1..601 x3+601; stage_1 1..301 x3+601; stage_2 301..600 x3+601",
        {
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
                "count": 1, "mean": 600.0, "std": None, "min": 600.0, "p50": 600.0, "p90": None, "p95": None,
                "p99": None, "max": 600.0,
            },
            "codes": set(),
        },
    ),
    # Stage a starts kernels [10, 12] and [13, 14] ms: projected 4, busy 3.
    "GPU work": (
        "",
        "batch#0 0..8 items=4; a 0..4; b 4..7; launch 1..1.1 -> 10..12; launch 2..2.1 -> 13..14",
        {
            "D/toy/batch_0/gpu_time": 4.0, "D/toy/batch_0/gpu_busy_time": 3.0, "D/toy/batch_0/gpu_time_per_item": 1.0,
            "D/toy/batch_0/a/gpu_time": 4.0, "D/toy/batch_0/a/gpu_busy_time_per_item": 0.75,
            "D/toy/batch_0/b/gpu_time": 0.0,
        },
    ),
    # Each number's mean is over the batches in which the stage occurs.
    "repeated names are summed": (
        "",
        "batch#* 0..10 x3+20 items=2; resize 0..2 x3+3; resize 20..25",
        {
            "D/toy/batch_0/resize/cpu_time": 6.0, "D/toy/batch_0/resize/count": 3,
            "D/toy/batch_0/resize/cpu_time_per_item": 3.0, "M/toy/batch/batches": 3, "M/toy/batch/resize/batches": 2,
            "M/toy/batch/resize/cpu_time": 5.5, "M/toy/batch/resize/count": 2.0,
        },
    ),
    "warm-up leaves nothing": (
        "-w 2",
        "batch#* 0..50 x3+100; pipeline 0..500",
        {
            "D/toy/pipeline/total_items_minus_warmup": 0, "D/toy/pipeline/cpu_time_minus_warmup": None,
            "D/toy/pipeline/cpu_time_per_item_minus_warmup": None, "S/toy/pipeline/batch/cpu_time/mean": None,
            "codes": {"warmup-leaves-nothing"},
        },
    ),
    # Frames of videos are one loop of their own; what is in a warm-up video is warm-up. All are counted.
    "nested batches": (
        "-w 1",
        """
        video#* 0..190 x3+200
        frame#* 0..30 x4+40 items=5; frame#* 200..230 x4+40 items=5; frame#* 400..430 x4+40 items=5
        decode 0..10 x4+40; decode 200..210 x4+40; decode 400..410 x4+40
        """,
        {
            "D/toy/video_1/total_items": 1, "D/toy/video_1/frame_0/total_items": 5,
            "D/toy/video_1/frame_0/decode/cpu_time_per_item": 2.0, "D/toy/video_0/frame_3/warmup": True,
            "D/toy/video_1/frame_0/warmup": False, "S/toy/video/cpu_time/count": 1,
            "S/toy/video/frame/cpu_time/count": 4, "M/toy/video/frame/batches": 12,
        },
    ),
    "deleted ranges leave with all below them": (
        "",
        "batch#* 0..50 x2+100; stage 110..120; !delete 150..",
        {"keys D/toy": {"batch_0", "total_items", "total_items_minus_warmup"}, "M/toy/batch/batches": 1},
    ),
    # Two tasks whose ranges overlap without nesting, and a range of the thread around them.
    "tasks do not mix": (
        "",
        "outer 0..100 category=io; batch#0 30..60 lane=1 items=3; await 35..55 lane=1; batch#1 40..80 lane=2 items=4",
        {
            "D/toy/batch_0/await/cpu_time": 20.0, "D/toy/batch_1/total_items": 4, "M/toy/batch/await/batches": 1,
            "outside_batches/0/path": ["toy", "outer"],
        },
    ),
    # Plain NVTX and another recorder; outside of batches they are left out, or the other recorder's.
    "ranges of others inside batches are stages": (
        "",
        """
        !recorder 0.1.. recorder=library; pipeline 0..300; setup 0..5 domain=none; open 1..3 recorder=library
        batch#* 100..150 x2+100; decode 101..121 domain=nvimgcodec x2+100; parse 102..112 recorder=library x2+100
        infer 130..140 x2+100; launch 103..104 -> 160..167 x2+100
        """,
        {
            "M/toy/pipeline/batch/decode/cpu_time": 20.0, "M/toy/pipeline/batch/decode/gpu_time": 7.0,
            "M/toy/pipeline/batch/decode/parse/cpu_time": 10.0, "M/toy/pipeline/batch/infer/cpu_time": 10.0,
            "outside_batches/0/path": ["library", "open"], "codes": {"ranges-of-other-domains"},
        },
    ),
    "ranges of others are in the only task with a batch around them": (
        "",
        """
        batch#0 0..50 lane=1; batch#1 40..90 lane=2
        step 10..15 domain=none; step 42..47 domain=none; step 60..65 domain=none
        """,
        {"M/toy/batch/step/count": 1.0, "M/toy/batch/step/batches": 2, "codes": {"ranges-of-other-domains"}},
    ),
    "outside of batches a range lies in the nearest one of its recorder": (
        "",
        "outer 0..100; between 10..90 domain=none; inner 20..30; batch#0 200..250",
        {"outside_batches/0/path": ["toy", "outer"], "outside_batches/1/path": ["toy", "outer", "inner"]},
    ),
    "batches without items": (
        "",
        "pipeline 0..100; batch#0 0..10 items=none; batch#1 20..30 items=0; !items 50.. payload=99",
        {
            "D/toy/pipeline/batch_0/total_items": None, "D/toy/pipeline/batch_0/cpu_time_per_item": None,
            "D/toy/pipeline/batch_1/total_items": 0, "D/toy/pipeline/batch_1/cpu_time_per_item": None,
            "D/toy/pipeline/total_items": None, "codes": {"batch-without-items"},
        },
    ),
    "a recorder without ranges": ("", "", {"D": {}, "codes": {"no-ranges"}}),
    "a range never closed": (
        "", "pipeline 0..; batch#0 0..50", {"D/toy/pipeline/cpu_time": 50.0, "codes": {"range-never-closed"}},
    ),
    # A stage that is named like a number, like a batch, or like a batch with its index has a suffix.
    "names that clash": (
        "",
        "batch#0 0..50; count 0..5; batch 10..17; batch_3 20..29; tile#-4 30..33",
        {
            "D/toy/batch_0/count": 1, "D/toy/batch_0/count (range)/cpu_time": 5.0,
            "M/toy/batch/batch (range)/cpu_time": 7.0, "M/toy/batch/batch_3 (range)/cpu_time": 9.0,
            "D/toy/batch_0/tile_-4/cpu_time": 3.0,
        },
    ),
    # Batches of 10 ms and of 1 or 64 items: 20 ms and 65 items per pair.
    "per item is a ratio of totals": (
        "-w 1",
        "batch#* 0..10 x3+40; batch#* 20..30 items=64 x3+40; infer 0..4 x6+20",
        {
            "M/toy/batch/cpu_time_per_item": round(20 / 65, 6), "S/toy/batch/cpu_time_per_item/mean": round(20 / 65, 6),
            "S/toy/batch/cpu_time_per_item/min": 10 / 64, "S/toy/batch/cpu_time_per_item/max": 10.0,
            "S/toy/batch/infer/cpu_time_per_item/mean": round(8 / 65, 6),
        },
    ),
    # pipeline  |--------------------------------------------------|  0..1000, 600 of them waited
    # batches        |--w--|                        |-1-| |-2-| |-w-|
    # waits                 ......................!                      100..700
    "a wait at the start barrier": (
        "-w 1",
        """
        pipeline 0..1000; before 20..30 tid=101; elsewhere 0..900 tid=101
        batch#0 10..60; batch#1 700..750; batch#2 800..850; batch#3 900..950; !barrier 700.. payload=600000000
        """,
        {
            "D/toy/pipeline/cpu_time": 400.0, "D/toy/pipeline/cpu_time_minus_warmup": 300.0,
            "D/toy/pipeline/cpu_time_per_item": 100.0, "D/toy/elsewhere/cpu_time": 900.0,
            "codes": {"start-barrier-wait"},
        },
    ),
    # Batches every 20 ms, but for a pause of 65 ms in 165 ms.
    "a long pause": ("", "batch#* 0..15 x4+20; batch#4 140..155; batch#5 160..175", {"codes": {"long-pause"}}),
}  # fmt: skip

PLAIN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "other domains are left out": (
        r"--domain nvtx --batch-pattern step(\d+)",
        "main 0..100 text=1; Step* 10..30 x2+40; infer 12..20 text=1 x2+40; library 12..15 domain=cuDNN",
        {"D/nvtx/main/Step_1/infer/cpu_time": 8.0, "M/nvtx/main/Step/infer/cpu_time": 8.0, "keys D": {"nvtx"}},
    ),
    "batches without a number": (
        "--batch-pattern request",
        "request 20..26; request 0..5; request 40..47",
        {"D/nvtx/request_0/cpu_time": 5.0, "D/nvtx/request_2/cpu_time": 7.0},
    ),
    "an index of more than 64 bits is part of the name": (
        "",
        f"batch_7 0..5; batch_{'9' * 40} 10..15; batch_² 20..25",
        {"keys M/nvtx": {"batch", "batch_" + "9" * 40}, "outside_batches/0/path": ["nvtx", "batch_²"]},
    ),
    "no such domain": ("--domain nope", "", {"codes": {"domain-not-found"}}),
    "ranges are no batches": ("", "main 0..5", {"D/nvtx/main/cpu_time": 5.0, "codes": {"no-batches"}}),
    "warm-up batches that overlap": (
        "-w 1",
        "run 0..10; batch_0 1..8 start_end=1; batch_1 2..9 start_end=1; batch_2 3..9.5 start_end=1",
        {"D/nvtx/run/cpu_time_minus_warmup": None},
    ),
}
ALWAYS = {"batch-without-items", "negative-without-warmup"}


@pytest.mark.parametrize("name", [*RECORDED, *PLAIN])
def test_numbers_of_an_example(name: str, tmp_path: Path) -> None:
    options, text, expected = (RECORDED | PLAIN)[name]
    builder = Recorded() if name in RECORDED else TraceBuilder()
    trace = builder.add(text, unit=MS).write(tmp_path / "t.sqlite")
    body = analyze([trace], tmp_path / "out", *options.split())["t"]
    codes = {finding["code"] for finding in body["meta"]["findings"]}
    for path, value in expected.items():
        if path == "codes":
            assert codes - ALWAYS == value - ALWAYS
            assert codes >= value
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
    trace = Recorded(cuda_traced=cuda_traced, gpu=gpu).add("batch#0 0..1").write(tmp_path / "t.sqlite")
    body = analyze([trace], tmp_path / "out")["t"]
    assert (at(body, "D/toy/batch_0/gpu_time"), at(body, "D/toy/batch_0/cpu_time")) == (expected, 1.0)
    assert at(body, "S/toy/batch/gpu_time/mean") == expected
    assert ("gpu-not-traced" in {one["code"] for one in body["meta"]["findings"]}) == (expected is None)


def test_means_of_several_processes_are_over_all_batches(tmp_path: Path) -> None:
    """One process: 3 batches of 10 ms and 1 item, a stage in one. Other: a batch of 30 ms and 97 items."""
    one = Recorded().add("batch#* 0..10 x3+100; infer 0..4; run 0..300").write(tmp_path / "a.sqlite")
    other = Recorded().add("batch#0 0..30 items=97; run 0..100").write(tmp_path / "b.sqlite")
    mean = analyze([one, other], tmp_path / "out")["benchmark_mean"]
    expected = {
        "M/toy/run/batch/cpu_time": 15.0, "M/toy/run/batch/cpu_time_per_item": 0.6, "M/toy/run/batch/batches": 2,
        "M/toy/run/batch/infer/cpu_time_per_item": 4.0, "S/toy/run/batch/cpu_time/count": 4,
        "S/toy/run/batch/cpu_time/mean": 15.0, "S/toy/run/batch/cpu_time_per_item/mean": 0.6,
        "mean_all_batches/toy/run/cpu_time": 200.0, "mean_all_batches/toy/run/cpu_time_per_item": 4.0,
        "mean_all_batches/toy/run/batch_0/cpu_time": 20.0, "mean_all_batches/toy/run/batch_0/infer/count": 1,
        "mean_all_batches/toy/run/batch_2/cpu_time": 10.0,
    }  # fmt: skip
    assert {path: at(mean, path) for path in expected} == expected


# ---- names of stages ----


@pytest.mark.parametrize("name", ["p50", "count", "cpu_time", "", "x/y", "a (range)", "batches"])
def test_a_stage_may_have_any_name(tmp_path: Path, name: str) -> None:
    """In the trees, the diagnosis and the exported tables."""
    builder = Recorded()
    builder.add("batch#* 0..50 x3+100")
    for begin in (10, 110, 210):
        builder.stage(name, begin, begin + 30)
    trace = builder.write(tmp_path / "t.sqlite")
    body = analyze([trace], tmp_path / "out")["t"]
    path = ["toy", "batch", f"{name} (range)" if name in RESERVED_KEYS else name]
    assert body["mean_data"]["toy"]["batch"][path[-1]]["cpu_time"] == 30.0
    assert body["stats_minus_warmup"]["toy"]["batch"][path[-1]]["cpu_time"]["mean"] == 30.0
    assert [stage["path"] for stage in body["diagnosis"]["stages"]] == [path[:2], path]
    assert set(open_run(trace).stages()["path"].to_pylist()) == {path_text(tuple(path[1:]))}


def test_a_path_tells_a_stage_with_a_slash_from_one_inside_another(tmp_path: Path) -> None:
    trace = Recorded().add("batch#0 0..50; x/y 0..10; x 20..40; y 25..35").write(tmp_path / "t.sqlite")
    assert open_run(trace).stages()["path"].to_pylist() == ["batch/x\\/y", "batch/x", "batch/x/y"]


@given(st.lists(st.text(alphabet="a/\\ ", max_size=4), min_size=1, max_size=4).map(tuple))
def test_texts_of_paths_are_as_different_as_the_paths(path: tuple[str, ...]) -> None:
    assert last_key(path_text(path)) == path[-1]
    for other in itertools.islice(itertools.product(["a", "/", "\\", "a/", ""], repeat=len(path)), 30):
        assert (path_text(other) == path_text(path)) == (other == path)
