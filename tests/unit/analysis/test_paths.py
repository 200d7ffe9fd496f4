"""Stages and batches that share a name: every one has a key of its own, in files and in tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.analysis.energy.work import gpu_work
from perfharness.analysis.stages.combine import combine
from perfharness.analysis.stages.paths import unique_keys
from perfharness.model.result import RESERVED_KEYS, Tree, last_key, path_text
from perfharness.render.terminal.results import stage_rows
from perfharness.runs.run import open_run
from perfharness.trace import open_trace
from tests.unit.analysis.test_tabulate import result_of
from tests.unit.recorded_traces import Recorded

NAMES = st.sampled_from(["tile", "tile_0", "tile_1_0", "tile (range)", "count", "count (range)", "p50", "", "x/y", "0"])


@given(st.lists(st.tuples(st.integers(-2, 2), NAMES, st.booleans()), unique=True, max_size=20))
def test_keys_are_unique_beneath_their_parent(paths: list[tuple[int, str, bool]]) -> None:
    parent, names, is_batch = ([path[place] for path in paths] for place in range(3))
    keys = unique_keys(parent, names, is_batch)  # type: ignore[arg-type]
    mean = {(of, key) for of, key in zip(parent, keys, strict=True)}
    assert len(mean) == len(paths)
    assert not set(keys) & RESERVED_KEYS
    with_index = [
        (of, f"{name}_{index}" if batch else key)
        for index in (0, 10, -1)
        for of, name, key, batch in zip(parent, names, keys, is_batch, strict=True)
        if batch or index == 0
    ]
    assert len(set(with_index)) == len(with_index)
    for name, key, batch in zip(names, keys, is_batch, strict=True):
        assert key == name or name in RESERVED_KEYS or not batch


def collision() -> Recorded:
    """4 batches; in each a stage of 20 ms and two batches of 1 ms called `tile`, and a stage `tile_0` of 10 ms."""
    builder = Recorded()
    builder.stage("pipeline", 0, 400)
    for index in range(4):
        at = 100 * index
        builder.batch(index, at, at + 50)
        builder.stage("tile", at, at + 20)
        for tile in range(2):
            builder.batch(tile, at + 21 + tile, at + 22 + tile, name="tile")
        builder.stage("tile_0", at + 30, at + 40)
    return builder


def keys_in(tree: Tree) -> int:
    """Keys of a tree and of all trees in it."""
    return sum(1 + (keys_in(value) if isinstance(value, dict) else 0) for value in tree.values())


def test_a_stage_and_batches_of_one_name(tmp_path: Path) -> None:
    result = result_of(collision(), tmp_path)
    mean = result.mean_data["toy"]["pipeline"]["batch"]
    assert (mean["tile (range)"]["cpu_time"], mean["tile"]["cpu_time"]) == (20.0, 1.0)
    assert mean["tile_0 (range)"]["cpu_time"] == 10.0
    statistics = result.stats_minus_warmup["toy"]["pipeline"]["batch"]
    assert (statistics["tile (range)"]["cpu_time"]["mean"], statistics["tile"]["cpu_time"]["count"]) == (20.0, 8)
    batch = result.data["toy"]["pipeline"]["batch_0"]
    assert {key: batch[key]["cpu_time"] for key in ("tile (range)", "tile_0 (range)", "tile_0", "tile_1")} == {
        "tile (range)": 20.0, "tile_0 (range)": 10.0, "tile_0": 1.0, "tile_1": 1.0,
    }  # fmt: skip
    numbers = sum(len(column.rows) for column in result.entries.numbers)
    assert keys_in(result.data) == len(result.entries) + numbers, "one hides another"
    both = combine({"a": result, "b": result})
    assert both["mean_data"] == result.mean_data
    assert both["stats_minus_warmup"]["toy"]["pipeline"]["batch"]["tile (range)"]["cpu_time"]["count"] == 8


def test_a_stage_in_one_process_that_is_a_batch_in_another(tmp_path: Path) -> None:
    """Neither is averaged with the other."""
    stage, batch = Recorded(), Recorded()
    stage.batch(0, 0, 50)
    stage.stage("tile", 0, 20)
    batch.batch(0, 0, 50)
    batch.batch(0, 0, 2, name="tile")
    mean = combine({"a": result_of(stage, tmp_path), "b": result_of(batch, tmp_path)})
    means, statistics = (mean[which]["toy"]["batch"] for which in ("mean_data", "stats_minus_warmup"))
    assert (means["tile"]["cpu_time"], means["tile (range)"]["cpu_time"]) == (2.0, 20.0)
    assert (statistics["tile"]["cpu_time"]["mean"], statistics["tile (range)"]["cpu_time"]["mean"]) == (2.0, 20.0)


@pytest.mark.parametrize("name", ["p50", "mean", "count", "cpu_time", "total_items", "", "x/y", "a (range)", "batches"])
def test_a_stage_may_have_any_name(tmp_path: Path, name: str) -> None:
    """In the trees, the table, the diagnosis, the energy by stage, and the exported tables."""
    builder = Recorded(name or "empty")
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1)
    for index in range(3):
        builder.batch(index, 100 * index, 100 * index + 50)
        builder.stage("pre", 100 * index, 100 * index + 10)
        builder.stage(name, 100 * index + 10, 100 * index + 40)
    result = result_of(builder, tmp_path)
    key = f"{name} (range)" if name in RESERVED_KEYS else name
    path = (builder.recorder, "batch", key)
    rows = {row.path: row.statistics["cpu_time"]["mean"] for row in stage_rows(result.stats_minus_warmup)}
    assert rows == {path[:2]: 50.0, (*path[:2], "pre"): 10.0, path: 30.0}
    assert combine({"a": result, "b": result})["mean_data"] == result.mean_data
    analysis = Analysis(open_trace(tmp_path / "t.sqlite"))
    assert [stage.path for stage in diagnose(analysis).stages] == [path[:2], (*path[:2], "pre"), path]
    assert path_text(path) in gpu_work(analysis)[0].stages
    exported = open_run(tmp_path / "t.sqlite").stages().to_pylist()
    assert {row["path"]: row["duration_ns"] for row in exported} == {
        "batch/pre": 10_000_000, path_text(path[1:]): 30_000_000
    }  # fmt: skip


def test_a_path_tells_a_stage_with_a_slash_from_one_inside_another(tmp_path: Path) -> None:
    builder = Recorded()
    builder.batch(0, 0, 50)
    builder.stage("x/y", 0, 10)
    builder.stage("x", 20, 40)
    builder.stage("y", 25, 35)
    result_of(builder, tmp_path)
    paths = open_run(tmp_path / "t.sqlite").stages()["path"].to_pylist()
    assert paths == ["batch/x\\/y", "batch/x", "batch/x/y"]


@given(st.lists(st.text(alphabet="a/\\ ", max_size=4), min_size=1, max_size=4).map(tuple))
def test_texts_of_paths_are_as_different_as_the_paths(path: tuple[str, ...]) -> None:
    assert last_key(path_text(path)) == path[-1]
    for other in itertools.islice(itertools.product(["a", "/", "\\", "a/", ""], repeat=len(path)), 30):
        assert (path_text(other) == path_text(path)) == (other == path)


def test_a_batch_with_an_index_below_zero(tmp_path: Path) -> None:
    builder = Recorded()
    for index in (-5, -1, 0):
        builder.batch(index, 100 * (index + 5), 100 * (index + 5) + 10)
    assert list(result_of(builder, tmp_path).data["toy"])[2:] == ["batch_-5", "batch_-1", "batch_0"]
