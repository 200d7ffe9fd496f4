"""One row a range: the trace's ranges with their nesting and their GPU side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfharness.analysis.call_index import index_calls
from perfharness.analysis.coverage import find_blind_spots
from perfharness.analysis.forest import build_forest
from perfharness.analysis.intervals import Nesting, is_outer_first
from perfharness.analysis.projection import Projection, project
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import Bool, Events, Int64, NvtxRanges, pid_of


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


def build_range_table(events: Events) -> RangeTable:
    """Nest and project all ranges of a trace. Ranges that ended on another thread stand alone."""
    ranges = events.ranges
    forest, nesting = build_forest(ranges)
    index = index_calls(events, forest)
    projection, tally = project(events, forest, index)
    gpu_known, findings = find_blind_spots(events, index, tally)
    return RangeTable(
        ranges=ranges,
        nesting=nesting,
        projection=projection,
        gpu_known=gpu_known & ~ranges.crosses_threads,
        findings=[*events.meta.findings, *findings, *_never_closed(events)],
    )


def _never_closed(events: Events) -> list[Finding]:
    codes, counts = np.unique(events.ranges.name[events.ranges.is_open], return_counts=True)
    if not len(codes):
        return []
    most = np.argsort(-counts, kind="stable")[:5]
    shown = ", ".join(f"'{events.names[codes[at]]}' {counts[at]} times" for at in most.tolist())
    return [
        Finding(
            "range-never-closed",
            Severity.ERROR,
            f"{counts.sum()} range(s) were never closed ({shown}); their times run to the end of the trace.",
            "Pop every range, or use `with perf.range(...)`, which closes it on exceptions too.",
        )
    ]
