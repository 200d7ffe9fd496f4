"""Ranges as a table for reading."""

from __future__ import annotations

import pyarrow as pa

from perfharness.render.terminal.console import Column, Console, print_table
from perfharness.render.text import NOT_MEASURED

TABLE_COLUMNS = [
    Column("range", is_text=True), Column("pid", drop=5), Column("tid", drop=6), Column("start ms", drop=4),
    Column("CPU ms"), Column("GPU ms", drop=1), Column("busy ms", drop=2), Column("GPU ops", drop=3),
    Column("payload", drop=7),
]  # fmt: skip

MAX_INDENT = 40
"""Maximum of indented levels; deeper ones are aligned."""


def print_ranges(console: Console, table: pa.Table) -> None:
    """Print times in ms, and names indented by level; of several processes, their names in front."""
    several = len(table["process"].unique()) > 1
    rows = []
    for row in table.to_pylist():
        domain = f"{row['domain']}:" if row["domain"] else ""
        times = [row[key] for key in ("start_ns", "duration_ns", "gpu_duration_ns", "gpu_busy_ns")]
        cells = [
            "  " * min(row["level"], MAX_INDENT) + domain + row["name"],
            str(row["pid"]),
            str(row["tid"]),
            *(NOT_MEASURED if time is None else f"{time / 1e6:.3f}" for time in times),
            NOT_MEASURED if row["gpu_op_count"] is None else str(row["gpu_op_count"]),
            "" if row["payload"] is None else str(row["payload"]),
        ]
        rows.append([row["process"], *cells] if several else cells)
    columns = [Column("process", is_text=True), *TABLE_COLUMNS] if several else TABLE_COLUMNS
    print_table(console, columns, rows)
