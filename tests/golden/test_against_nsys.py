"""Our ranges against what nsys's own reports say about the same file, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.stages.entries import entry_table
from perfharness.analysis.stages.tree import tabulate
from perfharness.analysis.timeline.projection import RangeTable
from perfharness.model.trace import GpuOperationKind, Style, Trace, pid_of, tid_of
from perfharness.runs.files.json_files import entry_tree
from perfharness.trace import open_trace

TRACES = Path(__file__).parent / "traces"
RECORDED = ["recorder_nsys_2022_4", "recorder_nsys_2023_4"]
"""A recorder's ranges traced by old versions on a machine without a GPU."""

WITH_ANSWERS = ["cpu", "graphs", "graphs_node", "long", "pipeline", "threads", *RECORDED]


def answers(name: str, report: str) -> list[dict[str, Any]]:
    plain = TRACES / f"{name}.{report}.json"
    text = plain.read_text() if plain.exists() else gzip.decompress(plain.with_suffix(".json.gz").read_bytes()).decode()
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def read(name: str) -> tuple[Trace, RangeTable]:
    trace = open_trace(TRACES / f"{name}.sqlite")
    return trace, Analysis(trace).table


def nsys_name(trace: Trace, row: int) -> str:
    domain = trace.ranges.domain[row]
    return f"{trace.names[domain] if domain >= 0 else ''}:{trace.names[trace.ranges.name[row]]}"


@pytest.mark.parametrize("name", WITH_ANSWERS)
def test_every_push_pop_range_is_nsys_s(name: str) -> None:
    trace, table = read(name)
    ranges, nesting = table.ranges, table.nesting
    ours = [
        {
            "Start (ns)": int(ranges.start_ns[i]),
            "End (ns)": int(ranges.end_ns[i]),
            "Duration (ns)": int(ranges.end_ns[i] - ranges.start_ns[i]),
            "Name": nsys_name(trace, i),
            "PID": int(pid_of(ranges.thread)[i]),
            "TID": int(tid_of(ranges.thread)[i]),
            "Lvl": int(nesting.level[i]),
            "NumChild": int((nesting.parent == i).sum()) if len(ranges) < 1000 else None,
            "RangeId": int(ranges.row[i]),
            "ParentId": int(ranges.row[nesting.parent[i]]) if nesting.parent[i] >= 0 else "",
        }
        for i in range(len(ranges))
        if ranges.style[i] == Style.PUSH_POP
    ]
    theirs = [
        {key: (row[key] if key != "NumChild" or len(ranges) < 1000 else None) for key in ours[0]}
        for row in answers(name, "nvtx_pushpop_trace")
    ]
    assert by_id(ours, list(ours[0])) == by_id(theirs, list(ours[0]))


def projected(trace: Trace, table: RangeTable) -> list[dict[str, Any]]:
    ranges, nesting, projection = table.ranges, table.nesting, table.projection
    return [
        {
            "Name": nsys_name(trace, i),
            "Projected Start (ns)": int(projection.start_ns[i]),
            "Projected Duration (ns)": int(projection.end_ns[i] - projection.start_ns[i]),
            "Orig Start (ns)": int(ranges.start_ns[i]),
            "Orig Duration (ns)": int(ranges.end_ns[i] - ranges.start_ns[i]),
            "NumGPUOps": int(projection.operation_count[i]),
            "Lvl": int(nesting.level[i]),
            "RangeId": int(ranges.row[i]),
            "ParentId": int(ranges.row[nesting.parent[i]]) if nesting.parent[i] >= 0 else "",
        }
        for i in range(len(ranges))
        if projection.operation_count[i]
    ]


def by_id(rows: list[dict[str, Any]], keys: list[str]) -> dict[int, dict[str, Any]]:
    return {row["RangeId"]: {key: row[key] for key in keys} for row in rows}


@pytest.mark.parametrize("name", WITH_ANSWERS)
def test_every_projection_is_nsys_s(name: str) -> None:
    trace, table = read(name)
    theirs = answers(name, "nvtx_gpu_proj_trace")
    if name == "graphs":
        # nsys leaves whole-graph replays out; without them we must agree with it.
        trace, table = without_graph_rows(trace)
    ours = projected(trace, table)
    keys = list(ours[0]) if ours else []
    assert by_id(ours, keys) == by_id(theirs, keys)


def without_graph_rows(trace: Trace) -> tuple[Trace, RangeTable]:
    from dataclasses import fields, replace

    keep = trace.operations.kind != GpuOperationKind.GRAPH
    columns = {field.name: getattr(trace.operations, field.name)[keep] for field in fields(trace.operations)}
    trace = replace(trace, operations=replace(trace.operations, **columns))
    return trace, Analysis(trace).table


def test_graph_replays_count() -> None:
    """Expectation by hand: each of the 8 batches copies (2 operations), replays one graph and synchronises."""
    trace, table = read("graphs")
    name = [trace.names[code] for code in table.ranges.name]
    count = table.projection.operation_count
    assert [int(count[i]) for i in range(len(name)) if name[i] == "replay"] == [1] * 8
    assert [int(count[i]) for i in range(len(name)) if name[i].startswith("batch_")] == [3] * 8
    assert int(count[name.index("pipeline")]) == 24
    replays = trace.operations.kind == GpuOperationKind.GRAPH
    durations = sorted((trace.operations.end_ns - trace.operations.start_ns)[replays].tolist())
    projected_ns = table.projection.end_ns - table.projection.start_ns
    assert durations == sorted(int(projected_ns[i]) for i in range(len(name)) if name[i] == "replay")


def test_a_partial_trace_is_found_out_from_the_file_alone() -> None:
    trace, table = read("old_partial")
    codes = {finding.code for finding in table.findings if finding.severity.value == "error"}
    assert codes == {"tracer-too-old", "trace-incomplete"}
    # The first preprocess was recorded whole; what follows was not, and has no GPU numbers.
    names = [trace.names[code] for code in table.ranges.name]
    assert [names[i] for i in range(len(names)) if table.gpu_known[i]] == ["preprocess"]
    last_call = int(trace.api.start_ns.max())
    assert int(table.ranges.end_ns[table.gpu_known].max()) < last_call


@pytest.mark.parametrize("name", RECORDED)
def test_old_versions_carry_all_that_a_recorder_knows(name: str) -> None:
    """Three batches of two items, each with one stage, from the trace alone."""
    trace, _ = read(name)
    result = tabulate(Analysis(trace, AnalysisOptions(1)))
    pipeline = entry_tree(entry_table(result.entries))["tiny"]["pipeline"]
    assert [pipeline[f"batch_{i}"]["total_items"] for i in range(3)] == [2, 2, 2]
    assert (pipeline["total_items"], pipeline["total_items_minus_warmup"]) == (6, 2)
    assert pipeline["batch_1"]["stage"]["cpu_time"] > 10
    assert pipeline["gpu_time"] == 0.0
    assert trace.meta.tracer_version is not None
    assert trace.meta.tracer_version.startswith(name[-6:].replace("_", "."))
