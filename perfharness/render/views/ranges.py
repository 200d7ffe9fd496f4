"""Ranges of traces, one row each, in order."""

from __future__ import annotations

import pyarrow as pa

from perfharness.model.units import NS_PER_MS
from perfharness.render.blocks import Block, Cell, Column, Table
from perfharness.render.views.names import INDENT

MAX_INDENT = 40
"""Maximum of indented levels; deeper ones are aligned."""

TIMES = ("start_ns", "duration_ns", "gpu_duration_ns", "gpu_busy_ns")


def ranges_view(table: pa.Table) -> list[Block]:
    """Names indented by level; of several processes, their names in front."""
    several = len(table["process"].unique()) > 1
    columns = [
        *([Column("process")] if several else []),
        Column("range"),
        Column("pid", drop=5),
        Column("tid", drop=6),
        Column("start ms", "ms", drop=4),
        Column("CPU ms", "ms"),
        Column("GPU ms", "ms", drop=1),
        Column("busy ms", "ms", drop=2),
        Column("GPU ops", "count", drop=3),
        Column("payload", drop=7),
    ]
    rows: list[list[Cell]] = []
    for row in table.to_pylist():
        domain = f"{row['domain']}:" if row["domain"] else ""
        rows.append(
            [
                *([row["process"]] if several else []),
                INDENT * min(row["level"], MAX_INDENT) + domain + row["name"],
                str(row["pid"]),
                str(row["tid"]),
                *(None if row[key] is None else row[key] / NS_PER_MS for key in TIMES),
                row["gpu_op_count"],
                "" if row["payload"] is None else str(row["payload"]),
            ]
        )
    return [Table("ranges", columns, rows)]
