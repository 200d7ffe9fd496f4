"""Stages that no batch holds: in the result and in the table, with no figure per batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.stages.combine import combine
from perfharness.analysis.stages.outside import outside_tree
from perfharness.cli.main import run
from perfharness.model import conventions
from perfharness.model.findings import Severity
from perfharness.model.result import ProcessResult
from tests.schemas import valid
from tests.support.trace_builder import TraceBuilder
from tests.unit.analysis.test_tabulate import result_of
from tests.unit.recorded_traces import MS, Recorded


def loop(builder: Recorded) -> None:
    """A loop of 5 batches of 10 ms from 100 ms on, each with a stage."""
    builder.stage("pipeline", 90, 200)
    for index in range(5):
        builder.batch(index, 100 + 20 * index, 110 + 20 * index)
        builder.stage("infer", 101 + 20 * index, 103 + 20 * index)


def outside(result: ProcessResult) -> dict[tuple[str, ...], tuple[int, float, dict[str, int]]]:
    """Path -> count, CPU ms in all, and where they ran."""
    return {
        tuple(stage["path"]): (stage["count"], stage["cpu_time"]["total"], stage["where"])
        for stage in outside_tree([result.outside])
    }


def test_stages_of_other_threads_tasks_and_processes(tmp_path: Path) -> None:
    builder = Recorded()
    loop(builder)
    for index in range(5):
        at = 100 + 20 * index
        for worker in range(2):
            builder.stage("decode", at + worker, at + worker + 4, tid=201 + worker)
        builder.stage("fetch", at + 1, at + 6, lane=1)
        builder.stage("load", at + 2, at + 3, pid=300, tid=300)
    builder.stage("decode", 50, 53, tid=201)
    builder.stage("setup", 0, 30)
    builder.stage("between", 115, 117)
    result = result_of(builder, tmp_path, warmup=1)
    assert outside(result) == {
        ("toy", "setup"): (1, 30.0, {"no_batch_open": 1}),
        ("toy", "pipeline", "between"): (1, 2.0, {"no_batch_open": 1}),
        ("toy", "decode"): (11, 43.0, {"other_thread": 10, "no_batch_open": 1}),
        ("toy", "fetch"): (5, 25.0, {"other_task": 5}),
        ("toy", "load"): (5, 5.0, {"other_process": 5}),
    }
    assert list(result.stats_minus_warmup["toy"]) == ["pipeline"]
    pooled = {tuple(stage["path"]): stage for stage in combine({"a": result, "b": result})["outside_batches"]}
    assert (pooled["toy", "decode"]["count"], pooled["toy", "decode"]["cpu_time"]["mean"]) == (
        22, pytest.approx(43 / 11, abs=1e-6),
    )  # fmt: skip


def test_inside_a_batch_of_another_recorder(tmp_path: Path) -> None:
    """A library with a recorder of its own, in the batches of the script and before them."""
    builder = Recorded()
    loop(builder)
    builder.declare("library")
    for at in (50, 101, 121):
        builder.stage("load", at, at + 1, recorder="library")
    builder.stage("load", 141, 142, recorder="library", pid=300, tid=300)
    assert outside(result_of(builder, tmp_path)) == {
        ("library", "load"): (4, 4.0, {"other_recorder": 3, "no_batch_open": 1})
    }


def test_ranges_in_no_table_are_counted_with_their_names(tmp_path: Path) -> None:
    """Ranges that no recorder made; and without a recorder those that end on another thread."""
    builder = Recorded()
    loop(builder)
    builder.range("merge", 101 * MS, 104 * MS, domain="cudf")
    for index in range(5):
        builder.range(f"linear {index}", (101 + index) * MS, (102 + index) * MS)
    builder.range("import", 0, 9, domain=conventions.STARTUP_DOMAIN)
    (note,) = [one for one in result_of(builder, tmp_path).findings if one.code == "ranges-of-other-domains"]
    assert note.severity == Severity.NOTE
    assert note.message.startswith("6 NVTX ranges")
    for part in ("1 of domain 'cudf' (merge: 1, 3 ms)", "5 of domain 'nvtx'", "linear 0: 1, 1 ms", "2 more names"):
        assert part in note.message

    plain = TraceBuilder()
    plain.range("batch", 0, 9 * MS)
    for at in (1, 2):
        plain.range("upload", at * MS, (at + 4) * MS, start_end=True, end_tid=101)
    (note,) = [one for one in result_of(plain, tmp_path).findings if one.code == "ranges-end-on-another-thread"]
    assert (note.severity, "upload: 2, 8 ms" in note.message) == (Severity.NOTE, True)


def test_nothing_is_outside_where_there_is_no_batch_or_all_is_inside(tmp_path: Path) -> None:
    builder = Recorded()
    builder.stage("work", 0, 10)
    assert result_of(builder, tmp_path).outside == []
    loop(builder := Recorded())
    assert result_of(builder, tmp_path).outside == []


def test_in_files_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = Recorded()
    loop(builder)
    builder.stage("decode", 101, 109.5, tid=201)
    path = builder.write(tmp_path / "t.sqlite")
    assert run(["analyze", str(path), "-o", str(tmp_path / "out")]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "decode" in line)
    assert "8.500" in row
    for file, name in (("t/benchmark.json", "benchmark"), ("benchmark_mean.json", "benchmark_mean")):
        found = json.loads((tmp_path / "out" / file).read_text())["outside_batches"]
        valid(name, found, "properties/outside_batches")
        assert [(stage["path"], stage["cpu_time"]["total"]) for stage in found] == [(["toy", "decode"], 8.5)]


def test_each_range_is_inside_a_batch_around_one_or_outside(tmp_path: Path) -> None:
    """Counted over random trees: none is left out, none counted twice."""
    random = np.random.default_rng(1)
    builder = Recorded()
    made = 0
    for thread in range(4):
        for slot in range(20):
            at, tid = 100 * slot, 100 + thread
            shape = random.integers(4)
            if shape == 0:
                builder.batch(slot, at, at + 50, tid=tid)
                builder.stage("s", at + 1, at + 2, tid=tid)
            elif shape == 1:
                builder.stage("holder", at, at + 60, tid=tid)
                builder.batch(slot, at + 1, at + 50, tid=tid)
            else:
                builder.stage("s", at, at + 50, tid=tid)
                builder.stage("t", at + 1, at + 2, tid=tid)
            made += 2
    result = result_of(builder, tmp_path)
    inside = sum(int(values["count"].sum()) for values in result.values_minus_warmup.values())
    around = sum(value["count"] for key, value in result.data["toy"].items() if key == "holder")
    assert inside + around + sum(stage["count"] for stage in outside_tree([result.outside])) == made
