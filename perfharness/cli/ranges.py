"""`perfharness ranges`: one row a range, as a table, JSON, CSV or Parquet."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfharness.analysis.range_table import build_range_table
from perfharness.cli.options import NsysOption, exit_with
from perfharness.errors import UsageError
from perfharness.files import write_text
from perfharness.inputs import trace_file
from perfharness.report.journals import journals_beside
from perfharness.report.range_rows import range_parts, write_csv, write_json_rows, write_parquet, write_table
from perfharness.report.terminal import print_findings
from perfharness.trace import open_stream


class RangeFormat(str, Enum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


TEXT_WRITERS = {RangeFormat.TABLE: write_table, RangeFormat.JSON: write_json_rows, RangeFormat.CSV: write_csv}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ranges")(ranges)


def ranges(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace: .sqlite, .nsys-rep or a Parquet folder of nsys.")
    ],
    output_format: Annotated[
        RangeFormat, typer.Option("--format", help="How the rows are written.")
    ] = RangeFormat.TABLE,
    nsys: NsysOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write; default: the terminal.")] = None,
) -> None:
    """One row a range, ordered by process, thread, start and falling duration; times in nanoseconds.

    A range without GPU work has null GPU times and an operation count of 0; where GPU work could not be traced, the
    count is null too. It counts calls that started GPU work: a replay of a CUDA graph is 1. Findings go to stderr;
    exits with 3 where the trace is incomplete.
    """
    if output_format is RangeFormat.PARQUET and output is None:
        raise UsageError("Parquet is not for the terminal; name a file with -o.")
    path = trace_file(trace, nsys)
    journals = journals_beside(path)
    events = open_stream(path, parents=journals.parents)
    table = build_range_table(events)
    findings = [*table.findings, *journals.findings(events)]
    parts = range_parts(events, table)
    if output_format is RangeFormat.PARQUET and output is not None:
        write_parquet(parts, output)
    elif output is None:
        TEXT_WRITERS[output_format](parts, sys.stdout)
    else:
        write_text(output, lambda file: TEXT_WRITERS[output_format](parts, file))
    print_findings(Console(stderr=True), findings)
    exit_with(findings)
