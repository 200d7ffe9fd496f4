"""One row a range: the trace's ranges with their nesting and their GPU side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.coverage import find_blind_spots
from perfharness.analysis.intervals import Nesting, nest
from perfharness.analysis.projection import Projection, find_launches, project
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import Bool, Int64, NvtxRanges, Trace, pid_of


@dataclass(frozen=True)
class RangeTable:
    """Ranges of a trace with everything that is known of each; the columns are aligned.

    `order` lists the rows by (pid, tid, start, -duration). `gpu_known` is False where GPU work was, or may have been,
    started inside the range and is not in the trace: its GPU times are not measurements.
    """

    ranges: NvtxRanges
    nesting: Nesting
    projection: Projection
    gpu_known: Bool
    order: Int64
    findings: list[Finding]


def build_range_table(trace: Trace) -> RangeTable:
    """Nest and project all ranges of a trace. Ranges that ended on another thread stand alone."""
    ranges = trace.ranges
    launches = find_launches(trace.api, trace.operations)
    gpu_known, findings = find_blind_spots(trace, launches)
    return RangeTable(
        ranges=ranges,
        nesting=_nest_threads(ranges),
        projection=project(ranges, trace.api, trace.operations, launches),
        gpu_known=gpu_known & ~ranges.crosses_threads,
        order=np.lexsort(
            (ranges.row, ranges.start_ns - ranges.end_ns, ranges.start_ns, ranges.thread, pid_of(ranges.thread))
        ),
        findings=[*trace.meta.findings, *findings, *_never_closed(trace)],
    )


def _nest_threads(ranges: NvtxRanges) -> Nesting:
    # A range that ended on another thread belongs to no thread's nesting: each gets a group of its own.
    group = np.where(ranges.crosses_threads, -1 - np.arange(len(ranges)), ranges.thread)
    return nest(ranges.start_ns, ranges.end_ns, group)


def _never_closed(trace: Trace) -> list[Finding]:
    open_names = [trace.names[code] for code in trace.ranges.name[trace.ranges.is_open]]
    if not open_names:
        return []
    shown = ", ".join(f"'{name}'" for name in sorted(set(open_names))[:5])
    return [
        Finding(
            "range-never-closed",
            Severity.ERROR,
            f"{len(open_names)} range(s) were never closed ({shown}); their times run to the end of the trace.",
            "Pop every range, or use `with perf.range(...)`, which closes it on exceptions too.",
        )
    ]
