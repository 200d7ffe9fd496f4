"""`perfharness ranges`: one row per range, as a table, JSON, CSV or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import SOURCE, SOURCE_HELP, NsysOption, exit_code
from perfharness.cli.support.output import Output
from perfharness.errors import ResultError, TraceError, UsageError
from perfharness.files import write_text
from perfharness.model.findings import Finding, Severity
from perfharness.model.text import AsciiJson, SafeOnTerminal
from perfharness.render.terminal.ranges import write_table
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.run import Process, open_located
from perfharness.runs.tables.ranges import of_process, range_parts, write_csv, write_json_rows, write_parquet


class RangeFormat(str, Enum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ranges", cls=GroupedCommand)(ranges)


def ranges(
    source: Annotated[
        Path,
        typer.Argument(metavar=SOURCE, help=SOURCE_HELP),
    ],
    output_format: Annotated[
        RangeFormat, typer.Option("--format", help="How the rows are written.")
    ] = RangeFormat.TABLE,
    nsys: NsysOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write, - for stdout; default: the terminal.")
    ] = None,
) -> None:
    """One row per range, ordered by process, thread, start and falling duration; times in nanoseconds.

    A range without GPU work has null GPU times and an operation count of 0; where GPU work could not be traced, the
    count is null too. It counts calls that started GPU work: a replay of a CUDA graph is 1. Of a run, and of several, a
    first column `process` names the process. Findings go to stderr. Exits with 3 where a trace is incomplete.
    """
    if output_format is RangeFormat.PARQUET and output is None:
        raise UsageError("Parquet is not for the terminal; name a file with -o.")
    writers: dict[RangeFormat, Any] = {
        RangeFormat.TABLE: write_table, RangeFormat.JSON: write_json_rows, RangeFormat.CSV: write_csv,
    }  # fmt: skip
    files: dict[RangeFormat, Any] = {
        RangeFormat.TABLE: sys.stdout, RangeFormat.JSON: AsciiJson(), RangeFormat.CSV: SafeOnTerminal(),
    }  # fmt: skip
    findings: list[Finding] = []
    parts = _parts(locate(source, nsys), findings)
    if output_format is RangeFormat.PARQUET and output is not None:
        write_parquet(parts, output)
    elif output is None:
        writers[output_format](parts, files[output_format])
    else:
        write_text(output, lambda file: writers[output_format](parts, file))
    Output.of().findings(findings)
    raise typer.Exit(exit_code(findings))


def _parts(located: Located, findings: list[Finding]) -> Iterator[pa.Table]:
    """Tables of rows, of one trace after the other; adds what is found to `findings`. Raises `TraceError`."""
    processes = open_located(located).processes
    if located.trace is not None:
        yield from _parts_of_trace(processes[0], None, findings)
        return
    any_trace = False
    for process in processes:
        name = process.name
        try:
            parts = _parts_of_trace(process, name, findings)
            yield from parts if located.process is not None else of_process(parts, name)
            any_trace |= process.trace_path is not None
        except TraceError as error:
            findings.append(Finding("trace-unreadable", Severity.ERROR, str(error), process=name))
        process.release()
    if not any_trace:
        reasons = " ".join(finding.message for finding in findings)
        raise ResultError(f"{located.path} holds no trace that can be read, so there are no ranges. {reasons}")


def _parts_of_trace(process: Process, name: str | None, findings: list[Finding]) -> Iterator[pa.Table]:
    if process.analysis is None:
        findings.append(Finding("not-traced", Severity.WARNING, f"{name} has no trace, so it has no ranges."))
        return
    table = process.analysis.table
    findings += [replace(one, process=name) for one in [*table.findings, *process.journal_findings]]
    yield from range_parts(process.analysis.trace, table)
