"""`perfharness export`: write timelines, sampled stacks, tables and JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import exit_code
from perfharness.cli.support.output import Output
from perfharness.cli.support.reading import SOURCE, SOURCE_HELP, Reading
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.files import STDOUT
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import BENCH_NAME
from perfharness.model.settings import option
from perfharness.render.schemas import json_schema
from perfharness.render.stacks import write_stacks
from perfharness.render.timeline.chrome import write_chrome_trace
from perfharness.render.views.ranges import ranges_view
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.run import TABLES, open_located
from perfharness.runs.tables.files import WRITERS, read_tables, write_tables

TIMELINE, STACKS, RANGES = "timeline", "stacks", "ranges"
OF_TABLES = {f".{name}": name for name in WRITERS}
ENDINGS = {**OF_TABLES, ".json": TIMELINE, ".json.gz": TIMELINE, ".txt": STACKS}


class ExportSettings(BaseModel):
    """Options of `export`."""

    output: Path | None = option(
        "File to write (-: stdout), or a folder for several tables. Its ending selects the format: .json or"
        " .json.gz (timeline), .txt (sampled stacks), .csv, .json, .parquet or .arrow (a table).",
        flags="-o --output",
    )
    table: list[str] = option(f"Table to write: {', '.join(TABLES)}. Repeatable.", "", "NAME", default=[])
    format: Literal["csv", "json", "parquet", "arrow"] | None = option(
        "Format of tables in a folder or on stdout; without --table, write all tables."
    )
    schema_kind: str | None = option(
        "Print the JSON Schema of a result file, such as benchmark or manifest, and exit.",
        "",
        "KIND",
        flags="--schema",
    )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("export", cls=GroupedCommand)(export)


@with_settings()
def export(
    source: Annotated[Path | None, argument(SOURCE, SOURCE_HELP)] = None,
    *,
    asked: ExportSettings,
    reading: Reading,
) -> None:
    """Write a run for other programs: a timeline, sampled stacks, or tables of ranges, batches, stages, kernels.

    Open timelines in Perfetto or chrome://tracing, stacks in flamegraph.pl or speedscope. A table has the rows of all
    processes, or the cases of a `bench` suite. `--table ranges` without -o prints the ranges.

    Exit codes: 0 written; 1 the run cannot be read; 2 usage; 3 a trace is incomplete, or the launch has an error.
    """
    if asked.schema_kind is not None:
        typer.echo(json.dumps(json_schema(asked.schema_kind), indent=2, ensure_ascii=False))
        return
    if source is None:
        raise UsageError(f"Give a {SOURCE}.")
    file, names = asked.output, list(dict.fromkeys(asked.table))
    if unknown := [name for name in names if name not in TABLES]:
        raise UsageError(f"--table {unknown[0]}: must be {', '.join(TABLES)}.")
    if file is None and (names != [RANGES] or asked.format is not None):
        raise UsageError("Add -o FILE; only `--table ranges` can be printed.")
    wanted = asked.format or _format_of(file, names)
    is_suite = not names and asked.format is None and (source / BENCH_NAME).is_file()
    if file is not None and is_suite and wanted in WRITERS:
        from perfharness.bench import read_suite
        from perfharness.bench.results import bench_table  # slow to import

        for path in write_tables({"cases": bench_table(read_suite(source))}, wanted, file):
            Output().line(str(path))
        return
    located, read_as = locate(source), reading.read_as()
    output, written = Output(), [] if file is None else [file]
    if file is None:
        found, findings = read_tables(open_located(located, read_as), names)
        output.show(ranges_view(found[RANGES]))
    elif wanted == STACKS:
        findings = _export_stacks(located, read_as, file)
        written = [] if findings else written
    elif wanted == TIMELINE:
        findings = write_chrome_trace(open_located(located, read_as), file)
    else:
        every = TABLES if asked.format is not None else [RANGES]
        found, findings = read_tables(open_located(located, read_as), names or every)
        written = write_tables(found, wanted, file)
    for path in written:
        if path != STDOUT:
            output.line(str(path))
    output.findings(findings)
    raise typer.Exit(exit_code(findings))


def _format_of(output: Path | None, tables: Sequence[str]) -> str:
    """Content of a file by its ending; without one, a timeline or a table as CSV. Raises `UsageError`."""
    if output is None:
        return RANGES
    ending = ".json.gz" if output.name.lower().endswith(".json.gz") else output.suffix.lower()
    endings = {**OF_TABLES, "": "csv"} if tables else {**ENDINGS, "": TIMELINE}
    if len(tables) > 1 or output.is_dir() or ending not in endings:
        raise UsageError(
            f"{output}: give a file that ends in {', '.join(filter(None, endings))}, or a folder and --format."
        )
    return endings[ending]


def _export_stacks(located: Located, read_as: ReadAs, output: Path) -> list[Finding]:
    stacks = open_located(located, read_as).stacks()
    if not stacks:
        message = f"{output} was not written: {located.path} has no sampled stacks."
        return [Finding("no-stacks", Severity.ERROR, message, "launch with --explain to sample stacks")]
    write_stacks(stacks, output)
    return []
