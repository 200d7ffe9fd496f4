"""`perfharness open`: the report of a run in a browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.report import PricePerHour, PricePerKwh
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    SOURCE,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.support.output import OUTPUT, Output, QuietOption, VerboseOption
from perfharness.errors import ResultError
from perfharness.render.report.files import gather_all, prices_of
from perfharness.render.report.html import write_html
from perfharness.render.report.sections import document_of
from perfharness.render.terminal.console import say
from perfharness.runs.files.run_folder import ReadAs


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("open", cls=GroupedCommand)(open_report)


def open_report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar=f"{SOURCE}…", help="As for `perfharness report`."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Keep the page in this file. [default: a temporary one]", show_default=False,
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
) -> None:  # fmt: skip
    """Write the report of runs and show it in a browser; prints where it is.

    Exits with 1 where no browser could be started, and the page is there all the same.
    """
    streams = Output.of(quiet=quiet, verbose=verbose)
    read_as = ReadAs(warmup_batches, domain, batch_pattern)
    made = gather_all(runs, nsys, read_as, prices_of(price_per_hour, price_per_kwh))
    page = output
    if page is None:
        page = Path(tempfile.mkdtemp(prefix="perfharness-report-")) / "report.html"
    write_html(document_of(made), page)
    say(streams.results, str(page))
    streams.findings(made.findings)
    if not webbrowser.open(page.absolute().as_uri()):
        raise ResultError(f"No browser could be started here; open {page} with one, or copy it to where there is one.")
    raise typer.Exit(exit_code(made.findings))
