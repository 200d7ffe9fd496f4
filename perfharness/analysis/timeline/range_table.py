"""One row a range: the trace's ranges with their nesting and their GPU side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.timeline.coverage import find_untraced_work
from perfharness.analysis.timeline.forest import build_forest
from perfharness.analysis.timeline.intervals import Nesting, is_outer_first
from perfharness.analysis.timeline.projection import Launches, Projection, project
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import Bool, Int64, NvtxRanges, Trace, pid_of


@dataclass(frozen=True)
class RangeTable:
    """Ranges of a trace with everything that is known of each; the columns are aligned.

    `gpu_known` is False where GPU work was, or may have been,
    started inside the range and is not in the trace: its GPU times are not measurements.
    """

    ranges: NvtxRanges
    nesting: Nesting
    projection: Projection
    gpu_known: Bool
    findings: list[Finding]

    @cached_property
    def order(self) -> Int64:
        """Rows by (pid, tid, start, -duration)."""
        ranges = self.ranges
        pid = pid_of(ranges.thread)
        is_ordered = (pid[1:] >= pid[:-1]).all() and (ranges.row[1:] > ranges.row[:-1]).all()
        if is_ordered and is_outer_first(ranges.start_ns, ranges.end_ns, ranges.thread):
            return np.arange(len(ranges))
        return np.lexsort((ranges.row, ranges.start_ns - ranges.end_ns, ranges.start_ns, ranges.thread, pid))


def build_range_table(trace: Trace, launches: Launches) -> RangeTable:
    """Nest and project all ranges of a trace. Ranges that ended on another thread stand alone."""
    ranges = trace.ranges
    forest, nesting = build_forest(ranges)
    projection = project(trace, forest, launches)
    gpu_known, findings = find_untraced_work(trace, launches)
    return RangeTable(
        ranges=ranges,
        nesting=nesting,
        projection=projection,
        gpu_known=gpu_known & ~ranges.crosses_threads,
        findings=[*trace.meta.findings, *findings, *_never_closed(trace)],
    )


def _never_closed(trace: Trace) -> list[Finding]:
    codes, counts = np.unique(trace.ranges.name[trace.ranges.is_open], return_counts=True)
    if not len(codes):
        return []
    most = np.argsort(-counts, kind="stable")[:5]
    shown = ", ".join(f"'{trace.names[codes[at]]}' {counts[at]} times" for at in most.tolist())
    return [
        Finding(
            "range-never-closed",
            Severity.ERROR,
            f"{counts.sum()} range(s) were never closed ({shown}); their times run to the end of the trace.",
            "Pop every range, or use `with perf.range(...)`, which closes it on exceptions too.",
        )
    ]
