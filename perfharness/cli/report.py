"""`perfharness report`: a page for people, of runs, sweeps, cold starts, traces and suites; or its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from perfharness.analysis.cost import Prices
from perfharness.cli.help import GroupedCommand
from perfharness.cli.options import (
    EXIT_CHECK_FAILED,
    SOURCE,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.output import OUTPUT, Output, QuietOption, VerboseOption
from perfharness.errors import UsageError
from perfharness.files import STDOUT, is_stdout, write_text
from perfharness.render.report.document import Document
from perfharness.render.report.html import require_report, write_html
from perfharness.render.report.pdf import find_browser, write_pdf
from perfharness.render.report.sections import document_of
from perfharness.render.report.tables import markdown, write_csv, write_workbook
from perfharness.render.terminal.console import say
from perfharness.runs.inputs import locate
from perfharness.runs.report.gather import gather
from perfharness.runs.report.model import Report
from perfharness.runs.run_folder import ReadAs

COST = "Cost"
"""The group of the options of prices in the help."""


class ReportFormat(str, Enum):
    """Words of --format."""

    HTML = "html"
    MD = "md"
    CSV = "csv"
    XLSX = "xlsx"
    JSON = "json"
    PDF = "pdf"


ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv", ".xlsx": "xlsx", ".json": "json", ".pdf": "pdf"}

PricePerHour = Annotated[
    float | None,
    typer.Option(min=0.0, help="Of the machine of the run, in any currency: the cost of a million items.",
                 show_default=False, rich_help_panel=COST),
]  # fmt: skip
PricePerKwh = Annotated[
    float | None,
    typer.Option("--price-per-kwh", min=0.0, help="Of electricity: the cost of the GPUs' energy for a million items.",
                 show_default=False, rich_help_panel=COST),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report", cls=GroupedCommand)(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar=f"{SOURCE}…", help="Runs, processes of them, repeats, sweeps, cold starts, traces, suites of bench."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write (-: stdout); of csv, a folder.", rich_help_panel=OUTPUT),
    ] = Path("report.html"),
    output_format: Annotated[
        ReportFormat | None,
        typer.Option(
            "--format",
            help="html: one page with everything inside; md, csv, xlsx: its tables; json: what it is"
            " made of; pdf: the page, printed by a Chromium or Chrome."
            " [default: by the ending of the file]",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    price_per_hour: PricePerHour = None,
    price_per_kwh: PricePerKwh = None,
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write a report: what limits a run, latencies, stages, timelines, telemetry, energy, findings, the machine.

    The page needs no network and no other file. Nothing is written into the runs. Findings go to stderr; exits with 3
    where a trace is incomplete, or nothing was measured.
    """
    wanted = format_of(output, output_format)
    if wanted is not ReportFormat.JSON:
        require_report()
    if wanted is ReportFormat.PDF:
        find_browser(os.environ)
    if wanted is ReportFormat.CSV and is_stdout(output):
        raise UsageError("--format csv writes a file for each table, so -o must be a folder, not stdout.")
    streams = Output.of(quiet=quiet, verbose=verbose)
    read_as, prices = ReadAs(warmup_batches, domain, batch_pattern), prices_of(price_per_hour, price_per_kwh)
    made = gather_all(runs, nsys, read_as, prices)
    for path in write_report(made, output, wanted):
        say(streams.messages if is_stdout(output) else streams.results, str(path))
    streams.findings(made.findings)
    raise typer.Exit(exit_code(made.findings) if made.has_numbers else EXIT_CHECK_FAILED)


def gather_all(paths: Sequence[Path], nsys: Path | None, read_as: ReadAs, prices: Prices | None) -> Report:
    """The content of the report of runs, traces and suites. Raises `ResultError`, `TraceError`."""
    from perfharness.bench.suite.reported import merged_report, suite_report

    suites = {path: found for path in paths if (found := suite_report(path)) is not None}
    merged = {path: several for path in paths if (several := merged_report(path)) is not None}
    located = [locate(path, nsys) for path in paths if path not in suites and path not in merged]
    return gather(located, read_as, prices, list(suites.values()), list(merged.values()))


def prices_of(per_hour: float | None, per_kwh: float | None) -> Prices | None:
    """The prices; None where none was given."""
    return None if per_hour is None and per_kwh is None else Prices(per_hour, per_kwh)


def format_of(output: Path, asked: ReportFormat | None) -> ReportFormat:
    """What was asked for, or what the file's ending says. Raises `UsageError`."""
    if asked is not None:
        return asked
    if output == STDOUT:
        return ReportFormat.MD
    found = ENDINGS.get(output.suffix.lower())
    if found is None:
        endings = ", ".join(ENDINGS)
        raise UsageError(f"{output} has none of the endings {endings}; name the format with --format.")
    return ReportFormat(found)


def write_report(report: Report, output: Path, wanted: ReportFormat) -> list[Path]:
    """Write it; the files. Raises `ToolNotFoundError`, `ResultError`."""
    if wanted is ReportFormat.JSON:
        write_text(output, lambda file: print(report.model_dump_json(indent=2), file=file))
        return [output]
    document: Document = document_of(report)
    if wanted is ReportFormat.HTML:
        return [write_html(document, output)]
    if wanted is ReportFormat.PDF:
        return [write_pdf(document, output)]
    if wanted is ReportFormat.CSV:
        return write_csv(document, output)
    if wanted is ReportFormat.XLSX:
        return [write_workbook(document, output)]
    write_text(output, lambda file: print(markdown(document), end="", file=file))
    return [output]
