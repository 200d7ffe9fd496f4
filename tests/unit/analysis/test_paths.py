"""Names of stages in results and tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness import open_run
from perfharness.model.result import RESERVED_KEYS, last_key, path_text
from tests.unit.analysis.test_results import analyze
from tests.unit.recorded_traces import Recorded


@pytest.mark.parametrize("name", ["p50", "count", "cpu_time", "", "x/y", "a (range)", "batches"])
def test_a_stage_may_have_any_name(tmp_path: Path, name: str) -> None:
    """In the trees, the diagnosis and the exported tables."""
    builder = Recorded()
    for index in range(3):
        builder.batch(index, 100 * index, 100 * index + 50)
        builder.stage(name, 100 * index + 10, 100 * index + 40)
    trace = builder.write(tmp_path / "t.sqlite")
    body = analyze([trace], tmp_path / "out")["t"]
    path = ["toy", "batch", f"{name} (range)" if name in RESERVED_KEYS else name]
    assert body["mean_data"]["toy"]["batch"][path[-1]]["cpu_time"] == 30.0
    assert body["stats_minus_warmup"]["toy"]["batch"][path[-1]]["cpu_time"]["mean"] == 30.0
    assert [stage["path"] for stage in body["diagnosis"]["stages"]] == [path[:2], path]
    assert set(open_run(trace).stages()["path"].to_pylist()) == {path_text(tuple(path[1:]))}


def test_a_path_tells_a_stage_with_a_slash_from_one_inside_another(tmp_path: Path) -> None:
    builder = Recorded()
    builder.batch(0, 0, 50)
    builder.stage("x/y", 0, 10)
    builder.stage("x", 20, 40)
    builder.stage("y", 25, 35)
    paths = open_run(builder.write(tmp_path / "t.sqlite")).stages()["path"].to_pylist()
    assert paths == ["batch/x\\/y", "batch/x", "batch/x/y"]


@given(st.lists(st.text(alphabet="a/\\ ", max_size=4), min_size=1, max_size=4).map(tuple))
def test_texts_of_paths_are_as_different_as_the_paths(path: tuple[str, ...]) -> None:
    assert last_key(path_text(path)) == path[-1]
    for other in itertools.islice(itertools.product(["a", "/", "\\", "a/", ""], repeat=len(path)), 30):
        assert (path_text(other) == path_text(path)) == (other == path)
