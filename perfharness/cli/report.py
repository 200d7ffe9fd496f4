"""`perfharness report`: a page for people, of runs, sweeps, cold starts, traces and suites."""

from __future__ import annotations

import webbrowser
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
from perfharness.errors import ResultError, UsageError
from perfharness.files import is_stdout
from perfharness.render.report.files import format_of, gather_all, prices_of, require_format, write_report
from perfharness.render.terminal.console import say
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.report.anonymous import anonymous

COST = "Cost"
"""The group of the options of prices in the help."""

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
        typer.Option(
            "-o", "--output", help="File to write: .html, .md, or .pdf (-: stdout, Markdown).", rich_help_panel=OUTPUT
        ),
    ] = Path("report.html"),
    opened: Annotated[bool, typer.Option("--open", help="Show it in a browser.", rich_help_panel=OUTPUT)] = False,
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

    The page needs no network and no other file; a PDF is printed by a Chromium or Chrome. Nothing is written into the
    runs. Findings go to stderr.

    Exit codes: 0 written; 1 a run cannot be read, or no browser be started; 2 usage; 3 a trace is incomplete, or
    nothing was measured.
    """
    if opened and is_stdout(output):
        raise UsageError("--open shows a file, and -o - writes none; name a file")
    require_format(format_of(output))
    streams = Output.of(quiet=quiet, verbose=verbose)
    read_as, prices = ReadAs(warmup_batches, domain, batch_pattern), prices_of(price_per_hour, price_per_kwh)
    made = gather_all(runs, nsys, read_as, prices)
    write_report(anonymous(made) if without_names else made, output)
    say(streams.messages if is_stdout(output) else streams.results, str(output))
    streams.findings(made.findings)
    if opened and not webbrowser.open(output.absolute().as_uri()):
        raise ResultError(f"No browser could be started here; open {output} with one.")
    raise typer.Exit(exit_code(made.findings) if made.has_numbers else EXIT_CHECK_FAILED)
