"""`perfharness export`: a timeline for trace viewers, sampled stacks, or tables for notebooks; JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from perfharness.model.findings import Finding, Severity
from perfharness.render.stacks import write_stacks
from perfharness.render.terminal.console import say
from perfharness.render.terminal.ranges import print_ranges
from perfharness.render.timeline.chrome import write_chrome_trace
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.run import TABLES, open_located
from perfharness.runs.stacks import stacks_of_stages
from perfharness.runs.tables.files import WRITERS, read_tables, write_tables

TIMELINE, STACKS, RANGES = "timeline", "stacks", "ranges"
OF_TABLES = {f".{name}": name for name in WRITERS}
ENDINGS = {**OF_TABLES, ".json": TIMELINE, ".json.gz": TIMELINE, ".txt": STACKS}


class TableFormat(str, Enum):
    """Words of --format."""

    CSV = "csv"
    JSON = "json"
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
    source: Annotated[Path, typer.Argument(metavar=SOURCE, help=SOURCE_HELP)],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File to write (-: stdout), or a folder for several tables. The ending is the format: .json or"
            " .json.gz (timeline), .txt (stacks of --explain), .csv, .json, .parquet or .arrow (a table).",
            show_default=False,
        ),
    ] = None,
    tables: Annotated[
        list[TableName] | None, typer.Option("--table", help="Table to write; may be repeated. [default: ranges]")
    ] = None,
    table_format: Annotated[
        TableFormat | None,
        typer.Option("--format", help="Format of the tables in a folder (without --table: all of them), or on stdout."),
    ] = None,
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
    _schema: SchemaOption = None,
) -> None:
    """Write a run for other programs: a timeline, sampled stacks, or tables of ranges, batches, stages, kernels.

    Timelines are for Perfetto and chrome://tracing, stacks for flamegraph.pl and speedscope. A table holds all
    processes, with a column that names them. `--table ranges` without -o prints the ranges. Findings go to stderr.

    Exit codes: 0 written; 1 the run cannot be read; 2 usage; 3 a trace is incomplete, or the launch has an error.
    """
    names = list(dict.fromkeys(name.value for name in tables or ()))
    if output is None and (names != [RANGES] or table_format is not None):
        raise UsageError("name a file with -o; only `--table ranges` is printed without one.")
    wanted = table_format.value if table_format is not None else _format_of(output, names)
    located, read_as = locate(source, nsys), ReadAs(warmup_batches, domain, batch_pattern)
    streams, written = Output.of(), [] if output is None else [output]
    if output is None:
        found, findings = read_tables(open_located(located, read_as), names)
        print_ranges(streams.results, found[RANGES])
    elif wanted == STACKS:
        findings = _export_stacks(located, read_as, output)
        written = [] if findings else written
    elif wanted == TIMELINE:
        findings = write_chrome_trace(open_located(located, read_as), output)
    else:
        every = TABLES if table_format is not None else [RANGES]
        found, findings = read_tables(open_located(located, read_as), names or every)
        written = write_tables(found, wanted, output)
    for path in written:
        say(streams.messages if is_stdout(path) else streams.results, str(path))
    streams.findings(findings)
    raise typer.Exit(exit_code(findings))


def _format_of(output: Path | None, tables: Sequence[str]) -> str:
    """What a file holds, by its ending; a timeline, or CSV of a table, where it has none. Raises `UsageError`."""
    if output is None:
        return RANGES
    ending = ".json.gz" if output.name.lower().endswith(".json.gz") else output.suffix.lower()
    endings = {**OF_TABLES, "": "csv"} if tables else {**ENDINGS, "": TIMELINE}
    if len(tables) > 1 or output.is_dir() or ending not in endings:
        raise UsageError(
            f"{output}: the ending of one file is its format ({', '.join(filter(None, endings))}); for a folder of "
            "tables name theirs with --format."
        )
    return endings[ending]


def _export_stacks(located: Located, read_as: ReadAs, output: Path) -> list[Finding]:
    stacks = stacks_of_stages(located, read_as)
    if not stacks:
        message = f"{output} was not written: no stage of {located.path} has a sampled stack."
        return [Finding("no-stacks", Severity.ERROR, message, "`perfharness launch --explain` records them")]
    write_stacks(stacks, output)
    return []
