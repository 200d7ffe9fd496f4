"""Table of ranges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from perfharness.model.units import NS_PER_MS
from perfharness.render.blocks import Block, Column, Columns, table_of
from perfharness.render.numbers import scaled
from perfharness.render.views.names import INDENT

MAX_INDENT = 40
"""Levels; deeper ranges get the same indent."""

PROCESS: Columns[dict[str, Any]] = [(Column("process"), lambda row: row["process"])]
RANGES: Columns[dict[str, Any]] = [
    (Column("range"), lambda row: INDENT * min(row["level"], MAX_INDENT) + _name(row)),
    (Column("pid", drop=5), lambda row: str(row["pid"])),
    (Column("tid", drop=6), lambda row: str(row["tid"])),
    (Column("start ms", "ms", drop=4), lambda row: scaled(row["start_ns"], NS_PER_MS)),
    (Column("wall ms", "ms"), lambda row: scaled(row["duration_ns"], NS_PER_MS)),
    (Column("GPU ms", "ms", drop=1), lambda row: scaled(row["gpu_duration_ns"], NS_PER_MS)),
    (Column("busy ms", "ms", drop=2), lambda row: scaled(row["gpu_busy_ns"], NS_PER_MS)),
    (Column("GPU ops", "count", drop=3), lambda row: row["gpu_op_count"]),
    (Column("payload", drop=7), lambda row: "" if row["payload"] is None else str(row["payload"])),
]


def ranges_view(table: pa.Table) -> list[Block]:
    """Ranges indented by level; the first column names the process if there are several."""
    several = len(table["process"].unique()) > 1
    return [table_of("ranges", [*PROCESS, *RANGES] if several else RANGES, table.to_pylist())]


def _name(row: dict[str, Any]) -> str:
    return f"{row['domain']}:{row['name']}" if row["domain"] else str(row["name"])
