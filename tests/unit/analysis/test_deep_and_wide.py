"""Ranges nested thousands deep, and thousands of names: everything is there, and files stay readable."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.analysis.timeline.intervals import MAX_LEVELS
from perfharness.cli.main import run
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.recorded_traces import Recorded

DEPTH = 3000


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
    for number in range(250):
        length = 1.0 if number % 25 == 0 else 2.0
        builder.stage(f"s{number}", at, at + length)
        at += length
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    found = diagnose(find_evidence(Pass(Analysis(trace))))
    assert len(found.stages) == 200
    assert found.stages[0].path == ("toy", "batch")
    assert not {stage.path[-1] for stage in found.stages} & {f"s{number}" for number in range(0, 250, 25)}
