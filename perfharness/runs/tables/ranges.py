"""Ranges as rows of an Arrow table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from perfharness.analysis.analysis import Analysis
from perfharness.model.trace import Style, pid_of, tid_of
from perfharness.runs.tables.columns import constant, names_of, nullable, unix_times, whole

STYLE_NAMES = {Style.PUSH_POP: "push_pop", Style.START_END: "start_end"}


def range_rows(analysis: Analysis, process: str) -> pa.Table:
    """One row per range, sorted by process, thread and start; an outer range comes before those inside it."""
    trace, table = analysis.trace, analysis.table
    ranges, projection, order = table.ranges, table.projection, table.order
    gpu_known, operation_count = table.gpu_known[order], projection.operation_count[order]
    has_no_work = (operation_count == 0) | ~gpu_known
    start, parent = np.asarray(ranges.start_ns[order]), table.nesting.parent[order]
    gpu_start = projection.start_ns[order]
    return pa.table(
        {
            "process": constant(process, len(start)),
            "range_id": whole(ranges.row[order]),
            "parent_id": nullable(ranges.row[parent], parent < 0),
            **{
                column: names_of(getattr(ranges, column)[order], trace.names).cast(pa.string())
                for column in ("name", "domain", "category")
            },
            "style": pa.DictionaryArray.from_arrays(ranges.style[order].astype(np.int8), list(STYLE_NAMES.values())),
            "pid": pid_of(ranges.thread[order]),
            "tid": tid_of(ranges.thread[order]),
            "level": whole(table.nesting.level[order]),
            "start_ns": start,
            "start_unix_ns": unix_times(start, trace.meta.session_start_unix_ns),
            "duration_ns": ranges.end_ns[order] - start,
            "gpu_start_ns": nullable(gpu_start, has_no_work),
            "gpu_duration_ns": nullable(projection.end_ns[order] - gpu_start, has_no_work),
            "gpu_busy_ns": nullable(projection.busy_ns[order], has_no_work),
            "gpu_op_count": nullable(operation_count, ~gpu_known),
            "payload": nullable(ranges.payload[order], ~ranges.has_payload[order]),
        }
    )
