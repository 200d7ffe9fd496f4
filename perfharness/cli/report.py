"""`perfharness report`: a page for people, of runs, sweeps, cold starts, traces and suites; or its tables."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    EXIT_CHECK_FAILED,
    SOURCE,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.support.output import OUTPUT, Output, QuietOption, VerboseOption
from perfharness.files import is_stdout
from perfharness.render.report.files import format_of, gather_all, prices_of, require_format, write_report
from perfharness.render.terminal.console import say
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.report.anonymous import anonymous

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
    without_names: Annotated[
        bool,
        typer.Option("--anonymous", help="Leave out host, user and paths.", rich_help_panel=OUTPUT),
    ] = False,
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

    The page needs no network and no other file. Nothing is written into the runs. Findings go to stderr.
    Exits with 3 where a trace is incomplete, or nothing was measured.
    """
    wanted = format_of(output, None if output_format is None else output_format.value)
    require_format(output, wanted)
    streams = Output.of(quiet=quiet, verbose=verbose)
    read_as, prices = ReadAs(warmup_batches, domain, batch_pattern), prices_of(price_per_hour, price_per_kwh)
    made = gather_all(runs, nsys, read_as, prices)
    for path in write_report(anonymous(made) if without_names else made, output, wanted):
        say(streams.messages if is_stdout(output) else streams.results, str(path))
    streams.findings(made.findings)
    raise typer.Exit(exit_code(made.findings) if made.has_numbers else EXIT_CHECK_FAILED)
