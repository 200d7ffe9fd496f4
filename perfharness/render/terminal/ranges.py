"""Ranges as a table for reading; `perfharness ranges` has them in other formats too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TextIO

import pyarrow as pa

from perfharness.model.text import NOT_MEASURED
from perfharness.render.terminal.console import Column, Console, print_table

TABLE_COLUMNS = [
    Column("range", is_text=True), Column("pid", drop=5), Column("tid", drop=6), Column("start ms", drop=4),
    Column("CPU ms"), Column("GPU ms", drop=1), Column("busy ms", drop=2), Column("GPU ops", drop=3),
    Column("payload", drop=7),
]  # fmt: skip

MAX_INDENT = 40
"""Maximum of indented levels; deeper ones are aligned."""


def write_table(parts: Iterator[pa.Table], file: TextIO) -> None:
    """A table for people: times in ms, names indented by level."""
    rows = []
    several = False
    for row in itertools.chain.from_iterable(part.to_pylist() for part in parts):
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
        several = "process" in row
        rows.append([row["process"], *cells] if several else cells)
    columns = [Column("process", is_text=True), *TABLE_COLUMNS] if several else TABLE_COLUMNS
    print_table(Console(file=file), columns, rows)
