"""A trace that has been read and understood: what every table and every timeline is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfharness.analysis.judgement import judge_stages
from perfharness.analysis.measures import Measures, measure
from perfharness.analysis.projection import Launches, find_launches
from perfharness.analysis.range_table import RangeTable, build_range_table
from perfharness.analysis.stages import StageTable, find_stages
from perfharness.model.findings import Finding
from perfharness.model.trace import (
    NO_CALLS,
    GpuOperations,
    Int64,
    NvtxMarks,
    NvtxRanges,
    OperationDetails,
    Synchronizations,
    Trace,
    TraceDetails,
    TraceMeta,
)
from perfharness.report.journals import Journals, journals_beside
from perfharness.report.run_folder import ReadOptions
from perfharness.trace import open_trace


@dataclass(frozen=True)
class OpenedTrace:
    """One process's trace with everything that was worked out of it."""

    trace: Trace
    """With details."""

    table: RangeTable
    stages: StageTable
    measures: Measures
    launches: Launches
    findings: list[Finding]


def open_with_details(path: Path, options: ReadOptions) -> OpenedTrace:
    """Read a trace and work out its ranges, stages and batches. Raises `TraceError`."""
    journals = journals_beside(path)
    return _work_out(open_trace(path, details=True, parents=journals.parents), options, journals)


def without_trace() -> OpenedTrace:
    """What there is of a process that left no trace: every table, without rows."""
    none: Int64 = np.empty(0, dtype=np.int64)
    never = np.empty(0, dtype=np.bool_)
    shape = np.empty((0, 3), dtype=np.int64)
    return _work_out(
        Trace(
            ranges=NvtxRanges(none, none, none, none, none, none, none, none, none, never, never, never),
            marks=NvtxMarks(none, none, none, none, none, none, never),
            api=NO_CALLS,
            operations=GpuOperations(none, none, none, none, none, none, none),
            names=[],
            meta=TraceMeta("embedded", None, "untraced", "there is no trace", None),
            end_ns=0,
            details=TraceDetails(
                OperationDetails(none, none, shape, shape, none, none, none, none, none, none, none, none, none, none),
                Synchronizations(none, none, none, none, none, none, none),
            ),
        ),
        ReadOptions(),
        Journals(),
    )


def _work_out(trace: Trace, options: ReadOptions, journals: Journals) -> OpenedTrace:
    stages = find_stages(trace, options.domain, options.batch_pattern)
    table = build_range_table(trace)
    measures = measure(stages, table, options.warmup_batches)
    findings = [*table.findings, *stages.findings, *judge_stages(stages, measures, options.warmup_batches)]
    findings += journals.findings(trace)
    return OpenedTrace(trace, table, stages, measures, find_launches(trace.api, trace.operations), findings)
