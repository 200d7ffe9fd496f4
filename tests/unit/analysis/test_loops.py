"""Which batches are one loop, and so which of them are its warm-up; by hand and against a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages.roles import StageTable, name_paths
from perfharness.analysis.stages.stage_times import StageTimes
from perfharness.analysis.stages.stage_times import loops as find_loops
from perfharness.analysis.stages.tabulate import tabulate
from perfharness.analysis.stages.throughput import throughput
from perfharness.analysis.timeline.grouping import rows_of_levels
from perfharness.runs.files.meta import trace_only_meta
from perfharness.trace import open_trace
from tests.unit.recorded_traces import Recorded


def measured(builder: Recorded, tmp_path: Path, warmup: int) -> tuple[StageTable, StageTimes]:
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    analysis = Analysis(trace, AnalysisOptions(warmup))
    return analysis.stages, analysis.stage_times


def kept(builder: Recorded, tmp_path: Path, warmup: int = 1) -> dict[str, list[int]]:
    """Indices of the batches that are not warm-up, in order of rows, by name."""
    stages, stage_times = measured(builder, tmp_path, warmup)
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(stages.is_batch & ~stage_times.warmup).tolist():
        found.setdefault(stages.names[stages.name[row]], []).append(int(stages.batch_index[row]))
    return found


def test_three_levels_each_have_a_loop_of_their_own(tmp_path: Path) -> None:
    """3 epochs of 3 videos of 4 frames: of each loop the first and the last, and what is in them, is warm-up."""
    builder = Recorded()
    for epoch in range(3):
        builder.batch(epoch, 1000 * epoch, 1000 * epoch + 900, None, name="epoch")
        for video in range(3):
            at = 1000 * epoch + 300 * video
            builder.batch(video, at, at + 290, None, name="video")
            for frame in range(4):
                builder.batch(frame, at + 70 * frame, at + 70 * frame + 60, name="frame")
    assert kept(builder, tmp_path) == {"epoch": [1], "video": [1], "frame": [1, 2]}


def test_two_calls_of_a_pipeline_are_two_loops(tmp_path: Path) -> None:
    builder = Recorded()
    for at, count in ((0, 5), (1000, 6)):
        builder.stage("pipeline", at, at + 500)
        for index in range(count):
            builder.batch(index, at + 20 * index, at + 20 * index + 15)
    assert kept(builder, tmp_path) == {"batch": [1, 2, 3, 1, 2, 3, 4]}
    result = tabulate_file(tmp_path, 1)
    assert [loop.count for loop in result.loops] == [5, 6]
    rate = throughput({"p": result.loops}, clock_is_utc=True)
    assert (rate["items_per_second"], rate["items"]) == (50, 7), "the pause between the calls does not count"
    meta = trace_only_meta(open_trace(tmp_path / "t.sqlite").meta, result, "t", 1)
    assert meta["total_batches"] == {"toy/pipeline/batch": 11}
    assert meta["total_batches_minus_warmup"] == {"toy/pipeline/batch": 7}


def tabulate_file(tmp_path: Path, warmup: int) -> Any:
    trace = open_trace(tmp_path / "t.sqlite")
    return tabulate(Analysis(trace, AnalysisOptions(warmup)))


def test_a_range_around_each_batch_is_part_of_one_loop(tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("main", 0, 500)
    for index in range(5):
        builder.stage("process_one", 50 * index, 50 * index + 40)
        builder.batch(index, 50 * index, 50 * index + 30)
    assert kept(builder, tmp_path) == {"batch": [1, 2, 3]}


def test_where_the_lowest_index_comes_again_a_new_loop_begins(tmp_path: Path) -> None:
    builder = Recorded()
    for place, index in enumerate([0, 1, 2, 3, 0, 1, 2, 3, 4]):
        builder.batch(index, 20 * place, 20 * place + 10)
    assert kept(builder, tmp_path) == {"batch": [1, 2, 1, 2, 3]}


def test_indices_that_never_change_or_come_in_any_order_are_one_loop(tmp_path: Path) -> None:
    for indices in ([0, 0, 0, 0, 0], [3, 1, 2, 0, 4]):
        builder = Recorded()
        for place, index in enumerate(indices):
            builder.batch(index, 20 * place, 20 * place + 10)
        assert kept(builder, tmp_path) == {"batch": indices[1:-1]}


def test_a_thread_or_a_task_for_each_batch_makes_one_loop(tmp_path: Path) -> None:
    for key in ("tid", "lane"):
        builder = Recorded()
        for index in range(6):
            where: dict[str, Any] = {key: index + 1}
            builder.batch(index, 20 * index, 20 * index + 30, **where)
        assert sorted(kept(builder, tmp_path)["batch"]) == [1, 2, 3, 4]


@pytest.mark.parametrize("key", ["tid", "lane", "pid"])
def test_each_thread_task_or_worker_with_batches_has_its_warmup(tmp_path: Path, key: str) -> None:
    """Four with six batches each, of which the first is cold (50 ms), the others take 5 ms: 16 are left, of 5 ms."""
    builder = Recorded()
    for number in range(1, 5):
        where: dict[str, Any] = {key: number}
        for index in range(6):
            at = number + 60 * index
            builder.batch(index, at, at + (50 if index == 0 else 5), **where)
    assert kept(builder, tmp_path) == {"batch": [1, 2, 3, 4] * 4}
    time = tabulate_file(tmp_path, 1).stats_minus_warmup["toy"]["batch"]["cpu_time"]
    assert (time["count"], time["mean"], time["max"]) == (16, 5, 5)


def test_rounds_of_tasks_are_one_loop_with_the_rate_of_the_rounds(tmp_path: Path) -> None:
    """Five rounds of four tasks of 20 ms, a round each 20.5 ms: 4 items in 20.5 ms."""
    builder = Recorded()
    for number in range(20):
        at = 20.5 * (number // 4) + 0.001 * (number % 4)
        builder.batch(number, at, at + 20, lane=1 + number % 4)
    builder.write(tmp_path / "t.sqlite")
    loops = tabulate_file(tmp_path, 1).loops
    assert [loop.count for loop in loops] == [20]
    found = throughput({"p": loops}, clock_is_utc=True)
    assert found["items_per_second"] == pytest.approx(4 / 0.0205, rel=1e-3)
    assert found["items"] == pytest.approx(12, abs=0.01)


def test_tasks_of_a_server_share_one_loop(tmp_path: Path) -> None:
    """Twice 12 requests of 25 ms, one each 10 ms, on whichever lane is free; a peak takes a fourth lane."""
    builder = Recorded()
    for number in range(24):
        lane = 4 if number in (5, 17) else 1 + number % 3
        builder.batch(number % 12, 10 * number, 10 * number + 25, lane=lane)
    assert sorted(kept(builder, tmp_path)["batch"]) == sorted([*range(1, 11)] * 2)
    assert [loop.count for loop in tabulate_file(tmp_path, 1).loops] == [12, 12]


def test_no_batch_left_is_an_error_and_none_of_some_name_a_warning(tmp_path: Path) -> None:
    builder = Recorded()
    for video in range(4):
        builder.batch(video, 100 * video, 100 * video + 90, name="video")
        for frame in range(2):
            builder.batch(frame, 100 * video + 40 * frame, 100 * video + 40 * frame + 30, name="frame")
    builder.write(tmp_path / "t.sqlite")

    def severity(warmup: int) -> list[str]:
        findings = tabulate_file(tmp_path, warmup).findings
        return [finding.severity.value for finding in findings if finding.code == "warmup-leaves-nothing"]

    assert [severity(warmup) for warmup in (0, 1, 5000)] == [[], ["warning"], ["error"]]


@dataclass
class Columns:
    """As much of a `StageTable` as loops are found by."""

    parent: Any
    level: Any
    thread: Any
    lane: Any
    owner: Any
    name: Any
    is_batch: Any
    batch_index: Any
    start_ns: Any
    rows_of_levels: Any

    def __len__(self) -> int:
        return len(self.parent)


@given(
    st.lists(  # one thread each: ranges that run one after another, each with so many batches
        st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_loops_are_the_holders_with_two_batches_on_average(threads: list[list[int]], held: bool) -> None:
    """Brute force over trees of one name path: the holder is the range, else the thread, else the recorder."""
    rows: list[tuple[int, int, bool, int]] = []  # parent, thread, is_batch, index
    number = 0
    for thread, calls in enumerate(threads):
        for count in calls:
            parent = -1
            if held:
                rows.append((-1, thread, False, 0))
                parent = len(rows) - 1
            for _ in range(count):
                rows.append((parent, thread, True, number))
                number += 1
    columns = np.asarray(rows, dtype=np.int64).reshape(-1, 4)
    count = len(rows)
    table: Any = Columns(
        parent=columns[:, 0], level=(columns[:, 0] >= 0).astype(np.int64), thread=columns[:, 1],
        lane=np.zeros(count, np.int64), owner=np.zeros(count, np.int64), name=columns[:, 2],
        is_batch=columns[:, 2] > 0, batch_index=columns[:, 3], start_ns=np.arange(count),
        rows_of_levels=rows_of_levels((columns[:, 0] >= 0).astype(np.int64)),
    )  # fmt: skip
    found = find_loops(table, name_paths(table))
    batches = [row for row in range(count) if rows[row][2]]
    candidates = [[row[place] for row in rows] for place in ((0, 1) if held else (1,))] + [[0] * count]
    holder = next(c for c in candidates if c is candidates[-1] or len(batches) >= 2 * len({c[row] for row in batches}))
    assert (found[~table.is_batch] == -1).all()
    for one in batches:
        for other in batches:
            assert (found[one] == found[other]) == (holder[one] == holder[other])


@pytest.mark.parametrize("count", [0, 1])
def test_few_batches(count: int, tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("main", 0, 100)
    for index in range(count):
        builder.batch(index, 10, 20)
    stages, stage_times = measured(builder, tmp_path, 0)
    assert (stage_times.loop[stages.is_batch] == 0).all()
    assert len(stage_times.rows_of_loops) == count


@settings(max_examples=25)
@given(
    calls=st.lists(
        st.tuples(
            st.integers(1, 3), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 64)), min_size=2, max_size=6)
        ),
        min_size=1,
        max_size=4,
    ),
    warmup=st.integers(0, 2),
)
def test_statistics_are_of_each_loop_s_batches(
    calls: list[tuple[int, list[tuple[int, int]]]], warmup: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Calls of a pipeline on any thread, one after another; each batch has a length in ms and items."""
    builder, at = Recorded(), 0
    left: list[tuple[int, int]] = []
    for thread, batches in calls:
        builder.stage("pipeline", at, at + 100, tid=thread)
        for index, (length, items) in enumerate(batches):
            builder.batch(index, at + 10 * index, at + 10 * index + length, items, tid=thread)
        left += batches[warmup : len(batches) - warmup]
        at += 200
    folder = tmp_path_factory.mktemp("loops")
    builder.write(folder / "t.sqlite")
    statistics = tabulate_file(folder, warmup).stats_minus_warmup["toy"]["pipeline"]["batch"]
    assert statistics["cpu_time"]["count"] == len(left)
    if left:
        time, total = sum(length for length, _ in left), sum(items for _, items in left)
        assert statistics["cpu_time"]["mean"] == pytest.approx(time / len(left), abs=1e-6)
        assert statistics["cpu_time_per_item"]["mean"] == pytest.approx(time / total, abs=1e-6)
        assert statistics["cpu_time_per_item"]["max"] == pytest.approx(max(a / b for a, b in left), abs=1e-6)
