"""`perfharness report`: a page for people, of runs, sweeps, cold starts, traces and suites."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, Field

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import EXIT_CHECK_FAILED, exit_code
from perfharness.cli.support.output import OUTPUT, Output
from perfharness.cli.support.reading import SOURCE, Reading
from perfharness.cli.support.settings import with_settings
from perfharness.errors import ResultError, UsageError
from perfharness.files import STDOUT
from perfharness.model.settings import Option

COST = "Cost"
"""The group of the options of prices in the help."""


class ReportSettings(BaseModel):
    """What is written where."""

    output: Annotated[
        Path, Option(("-o", "--output"), OUTPUT, "File to write: .html, .md, or .pdf (-: stdout, Markdown).")
    ] = Path("report.html")
    opened: Annotated[bool, Option(("--open",), OUTPUT, "Show it in a browser.")] = False
    anonymous: Annotated[bool, Option(("--anonymous",), OUTPUT, "Leave out host, user and paths.")] = False
    price_per_hour: Annotated[
        float | None,
        Option(("--price-per-hour",), COST, "Price of the machine, any currency: the cost of a million items."),
    ] = Field(default=None, ge=0)
    price_per_kwh: Annotated[
        float | None,
        Option(("--price-per-kwh",), COST, "Price of electricity: the cost of the GPUs' energy for a million items."),
    ] = Field(default=None, ge=0)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report", cls=GroupedCommand)(report_verb)


@with_settings()
def report_verb(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar=f"{SOURCE}…", help="Runs, processes of them, repeats, sweeps, cold starts, traces, suites of bench."
        ),
    ],
    *,
    asked: ReportSettings,
    reading: Reading,
) -> None:
    """Write a report: what limits a run, latencies, stages, timelines, telemetry, energy, findings, the machine.

    The page needs no network and no other file; a PDF needs the extra pdf. Nothing is written into the
    runs. Findings go to stderr.

    Exit codes: 0 written; 1 a run cannot be read, or typst is not installed; 2 usage; 3 a trace is incomplete, or
    nothing was measured.
    """
    file = asked.output
    if asked.opened and file == STDOUT:
        raise UsageError("--open shows a file, and -o - writes none; name a file")
    from perfharness.cli.support.progress import steps
    from perfharness.render.report.files import report  # imports what draws

    settings = asked.model_dump(include={"price_per_hour", "price_per_kwh", "anonymous"})
    output = Output()
    with steps(output.messages, "reading the traces"):
        made = report(*runs, output=file, **settings, **reading.model_dump())
    if file != STDOUT:
        output.line(str(file))
    output.findings(made.findings)
    if asked.opened and not webbrowser.open(file.absolute().as_uri()):
        raise ResultError(f"No browser could be started here; open {file} with one.")
    raise typer.Exit(exit_code(made.findings) if made.has_numbers else EXIT_CHECK_FAILED)
