"""Ranges nested thousands deep, and thousands of names: everything is there, and files stay readable."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.analysis.diagnosis.diagnose import MAX_STAGES
from perfharness.analysis.stages.roles import MAX_LEVELS
from perfharness.analysis.statistics import PERCENTILES, min_count, summarise
from perfharness.analysis.timeline import intervals
from perfharness.cli.main import run
from perfharness.model.rounding import figure
from perfharness.runs.run import open_run
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.recorded_traces import Recorded

DEPTH = 3000


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 1)), max_size=40), st.integers(1, 3))
def test_deep_intervals_nest_as_others_do(rows: list[tuple[int, int, int]], levels: int) -> None:
    """One by one from any level on, as level by level: overlapping ones and borders that touch included."""
    start = np.asarray([row[0] for row in rows], dtype=np.int64)
    end = start + np.asarray([row[1] for row in rows], dtype=np.int64)
    group = np.asarray([row[2] for row in rows], dtype=np.int64)
    order = intervals.outer_first(start, end, group)
    columns = start[order], end[order], group[order]
    by_level = intervals.nest_in_order(*columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "VECTORIZED_LEVELS", levels)
        one_by_one = intervals.nest_in_order(*columns)
    assert one_by_one.parent.tolist() == by_level.parent.tolist()
    assert one_by_one.level.tolist() == by_level.level.tolist()
    assert one_by_one.touching == by_level.touching


def test_sums_of_ranges_inside_ranges(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for level in range(50):
        builder.range("r", level, 1000 - level)
        builder.kernel((100 + level, 100 + level), (2000 + 10 * level, 2005 + 10 * level))
    table = Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).table
    assert table.projection.operation_count.tolist() == [50] * 50
    assert table.projection.busy_ns.tolist() == [250] * 50


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch, and in it `DEPTH` ranges, one in the other."""
    builder = Recorded()
    for batch in range(2):
        at = 2 * batch
        builder.batch(batch, at, at + 1)
        for level in range(DEPTH):
            builder.stage(f"r{level}", at + level / 1e4, at + 1 - level / 1e4)
    return builder.write(tmp_path_factory.mktemp("deep") / "t.sqlite")


def test_results_hold_the_outer_levels_and_say_how_many_they_leave_out(deep: Path, tmp_path: Path) -> None:
    tracemalloc.start()
    assert run(["analyze", str(deep), "-o", str(tmp_path)]) == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000
    result = json.loads((tmp_path / "t" / "benchmark.json").read_text())
    finding = next(one for one in result["meta"]["findings"] if one["code"] == "nested-too-deep")
    assert str(2 * (DEPTH + 1 - MAX_LEVELS)) in finding["message"]
    entry, depth = result["data"]["toy"]["batch_1"], 1
    while inside := [value for value in entry.values() if isinstance(value, dict)]:
        (entry,), depth = inside, depth + 1
    assert depth == MAX_LEVELS
    assert entry["cpu_time"] == pytest.approx(1 - 2 * (MAX_LEVELS - 2) / 1e4, abs=2e-6)
    assert result["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == 2
    assert (tmp_path / "t" / "benchmark.json").stat().st_size < 3_000_000


def test_a_diagnosis_reads_it(deep: Path) -> None:
    assert run(["analyze", str(deep), "-v"]) == 0


def test_no_range_is_missing_from_the_table_of_ranges(deep: Path) -> None:
    levels = open_run(deep).ranges()["level"].to_numpy()
    assert np.bincount(levels).tolist() == [2] * (DEPTH + 1)


def test_a_pop_that_is_forgotten_each_time(tmp_path: Path) -> None:
    """The range that is never popped is named, with how often."""
    builder = TraceBuilder()
    for step in range(500):
        builder.range("step", 10 * step, None)
        builder.range("infer", 10 * step + 1, 10 * step + 2)
    path = builder.write(tmp_path / "t.sqlite")
    assert run(["analyze", str(path), "-o", str(tmp_path / "out")]) == 3
    findings = json.loads((tmp_path / "out" / "benchmark_mean.json").read_text())["meta"]["findings"]
    (finding,) = (one for one in findings if one["code"] == "range-never-closed")
    assert "'step' 500 times" in finding["message"]
    assert "infer" not in finding["message"]


def test_the_stages_that_take_the_most_time_are_diagnosed(tmp_path: Path) -> None:
    builder = Recorded()
    builder.batch(0, 0, 100_000)
    at = 0.0
    for number in range(MAX_STAGES + 50):
        length = 1.0 if number % 25 == 0 else 2.0
        builder.stage(f"s{number}", at, at + length)
        at += length
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    found = diagnose(Analysis(trace))
    assert len(found.stages) == MAX_STAGES
    assert found.stages[0].path == ("toy", "batch")
    assert not {stage.path[-1] for stage in found.stages} & {f"s{number}" for number in range(0, 250, 25)}
    assert len([text for text in found.missing if "51" in text]) == 1


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=120))
def test_percentiles_are_numpys(values: list[float]) -> None:
    column = np.asarray(values)
    found = summarise(column).to_json()
    for name, percentile in PERCENTILES.items():
        expected = figure(float(np.percentile(column, percentile))) if len(values) >= min_count(percentile) else None
        assert found[name] == expected


def test_indices_that_fit_no_integer(tmp_path: Path) -> None:
    """A name may end in any digits; what is no index of 64 bits is a part of the name."""
    builder = TraceBuilder()
    for place, name in enumerate(("batch_7", "batch_" + "9" * 40, "batch_²")):
        builder.range(name, 10 * place, 10 * place + 5)
    stages = Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))).stages
    assert [stages.names[code] for code in stages.name] == ["batch", "batch_" + "9" * 40, "batch_²"]
    assert stages.is_batch.tolist() == [True, True, False]
