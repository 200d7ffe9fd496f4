"""`perfharness export`: a timeline for trace viewers, or tables for notebooks; JSON Schemas."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    SOURCE,
    SOURCE_HELP,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.support.output import Output
from perfharness.errors import UsageError
from perfharness.files import is_stdout
from perfharness.render.terminal.console import say
from perfharness.render.timeline.chrome import write_chrome_trace
from perfharness.render.timeline.speedscope import write_speedscope
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.run import TABLES, open_run
from perfharness.runs.stacks import sampled_processes
from perfharness.runs.tables.files import write_tables


class ExportFormat(str, Enum):
    """What is written."""

    CHROME = "chrome"
    SPEEDSCOPE = "speedscope"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


TableName = Enum("TableName", {name: name for name in TABLES}, type=str)  # type: ignore[misc]
"""Words of --table."""


def _print_schema(kind: str | None) -> None:
    if kind is None:
        return
    from perfharness.render.schemas import json_schema

    typer.echo(json.dumps(json_schema(kind), indent=2, ensure_ascii=False))
    raise typer.Exit


SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="KIND",
        help="Print the JSON Schema of a result file, such as benchmark or manifest, and end.",
        is_eager=True,
        callback=_print_schema,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("export", cls=GroupedCommand)(export)


def export(
    source: Annotated[
        Path,
        typer.Argument(metavar=SOURCE, help=SOURCE_HELP),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write (-: stdout), or the folder for several tables.")
    ],
    output_format: Annotated[
        ExportFormat,
        typer.Option(
            "--format", help="chrome: one JSON file for Perfetto and chrome://tracing; speedscope: stacks of --explain."
        ),
    ] = ExportFormat.CHROME,
    tables: Annotated[
        list[TableName] | None,
        typer.Option("--table", help="Which table, of csv, parquet and arrow; may be repeated; default: all of them."),
    ] = None,
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
    _schema: SchemaOption = None,
) -> None:
    """Write a run for other programs: a timeline, sampled stacks, or tables of ranges, batches, stages, kernels.

    A timeline whose name ends in .gz is compressed. Tables of all processes are in one file, with a column that names
    the process. Findings go to stderr. Exits with 3 where a trace is incomplete.
    """
    if tables and output_format in (ExportFormat.CHROME, ExportFormat.SPEEDSCOPE):
        raise UsageError("--table is for csv, parquet and arrow; the other formats hold everything.")
    streams = Output.of()
    if output_format is ExportFormat.SPEEDSCOPE:
        read_as = ReadAs(warmup_batches, domain, batch_pattern)
        write_speedscope(sampled_processes(locate(source, nsys), read_as), output, str(source))
        say(streams.messages if is_stdout(output) else streams.results, str(output))
        return
    run = open_run(source, warmup_batches=warmup_batches, domain=domain, batch_pattern=batch_pattern, nsys=nsys)
    if output_format is ExportFormat.CHROME:
        findings, written = write_chrome_trace(run, output), [output]
    else:
        names = [table.value for table in tables or TableName]
        findings, written = write_tables(run, list(dict.fromkeys(names)), output_format.value, output)
    for path in written:
        say(streams.messages if is_stdout(output) else streams.results, str(path))
    streams.findings(findings)
    raise typer.Exit(exit_code(findings))
