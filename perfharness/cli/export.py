"""`perfharness export`: a timeline for trace viewers, or tables for notebooks."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfharness.cli.options import BatchPatternOption, DomainOption, NsysOption, exit_with
from perfharness.errors import UsageError
from perfharness.files import is_stdout
from perfharness.inputs import open_run
from perfharness.report.export.chrome import write_chrome_trace
from perfharness.report.export.tables import write_tables
from perfharness.report.run import TABLES
from perfharness.report.terminal import print_findings


class ExportFormat(str, Enum):
    """What is written."""

    CHROME = "chrome"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


TableName = Enum("TableName", {name.upper(): name for name in TABLES}, type=str)  # type: ignore[misc]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("export")(export)


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_TRACE",
            help="A run folder, the folder of one process, or a trace: .sqlite, .nsys-rep or a Parquet folder of nsys.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write (-: stdout), or the folder for several tables."),
    ],
    output_format: Annotated[
        ExportFormat, typer.Option("--format", help="chrome: one JSON file for Perfetto and chrome://tracing.")
    ] = ExportFormat.CHROME,
    tables: Annotated[
        list[TableName] | None,
        typer.Option("--table", help="Which table, of csv, parquet and arrow; may be repeated; default: all of them."),
    ] = None,
    warmup_batches: Annotated[
        int | None,
        typer.Option("-w", "--warmup-batches", min=0, help="Batches marked as warm-up; default: as launched."),
    ] = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
) -> None:
    """Write a run for other programs: a timeline (Chrome trace), or tables of ranges, batches, stages and kernels.

    A timeline whose name ends in .gz is compressed. Tables of all processes stand in one file, with a column that tells
    the process. Findings go to stderr; exits with 3 where a trace is incomplete.
    """
    run = open_run(source, warmup_batches=warmup_batches, domain=domain, batch_pattern=batch_pattern, nsys=nsys)
    errors = Console(stderr=True)
    if output_format is ExportFormat.CHROME:
        if tables:
            raise UsageError("--table is for csv, parquet and arrow; a timeline holds everything.")
        findings, written = write_chrome_trace(run, output), [output]
    else:
        names = [str(table.value) for table in tables] if tables else list(TABLES)
        findings, written = write_tables(run, list(dict.fromkeys(names)), output_format.value, output)
    for path in written:
        typer.echo(str(path), err=is_stdout(output))
    print_findings(errors, findings)
    exit_with(findings)
