"""Ranges nested thousands deep, and thousands of names: everything is there, and files stay readable."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.analysis.timeline.intervals import MAX_LEVELS
from perfharness.cli.main import run
from tests.support.trace_builder import Recorded, TraceBuilder

DEPTH = 3000


def test_results_hold_the_outer_levels_and_say_how_many_they_leave_out(tmp_path: Path) -> None:
    """A batch, and in it `DEPTH` ranges, one in the other."""
    builder = Recorded().add("batch#* 0..1 x2+2")
    for level in range(DEPTH):
        builder.add(f"r{level} {level / 1e4:f}..{1 - level / 1e4:f} x2+2")
    deep = builder.write(tmp_path / "t.sqlite")
    tracemalloc.start()
    assert run(["analyze", str(deep), "-v", "-o", str(tmp_path)]) == 0
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


def test_a_pop_that_is_forgotten_each_time(tmp_path: Path) -> None:
    """The range that is never popped is named, with how often."""
    path = TraceBuilder().add("step 0.. x500+10; infer 1..2 x500+10").write(tmp_path / "t.sqlite")
    assert run(["analyze", str(path), "-o", str(tmp_path / "out")]) == 3
    findings = json.loads((tmp_path / "out" / "benchmark_mean.json").read_text())["meta"]["findings"]
    (finding,) = (one for one in findings if one["code"] == "range-never-closed")
    assert "'step' 500 times" in finding["message"]
    assert "infer" not in finding["message"]


def test_the_stages_that_take_the_most_time_are_diagnosed(tmp_path: Path) -> None:
    builder = Recorded().add("batch#0 0..100000")
    builder.add("short_* 0..1 x10+1; long_* 100..102 x240+2")
    found = diagnose(find_evidence(Pass(builder.analysis(tmp_path))))
    assert len(found.stages) == 200
    assert found.stages[0].path == ("toy", "batch")
    assert not [stage for stage in found.stages if stage.path[-1].startswith("short")]
