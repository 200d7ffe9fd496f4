"""`perfharness report`: write a report of runs, sweeps, cold starts, traces and suites."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import EXIT_CHECK_FAILED, exit_code
from perfharness.cli.support.output import OUTPUT, Output
from perfharness.cli.support.reading import SOURCE, Reading
from perfharness.cli.support.settings import with_settings
from perfharness.errors import ResultError, UsageError
from perfharness.files import STDOUT
from perfharness.model.settings import option

COST = "Cost"


class ReportSettings(BaseModel):
    """Options of `report`."""

    output: Path = option(
        "File to write: .html, .md or .pdf (-: Markdown to stdout).",
        OUTPUT,
        flags="-o --output",
        default=Path("report.html"),
    )
    opened: bool = option("Open the report in a browser.", OUTPUT, flags="--open", default=False)
    anonymous: bool = option("Leave out host, user and paths.", OUTPUT, default=False)
    price_per_hour: float | None = option(
        "Price of the machine, any currency, to show the cost per million items.", COST, ge=0
    )
    price_per_kwh: float | None = option(
        "Price of electricity, to show the GPUs' energy cost per million items.", COST, ge=0
    )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report", cls=GroupedCommand)(report_verb)


@with_settings()
def report_verb(
    runs: Annotated[
        list[Path],
        argument(f"{SOURCE}…", "Runs, their processes, repeats, sweeps, cold starts, traces, suites of bench."),
    ],
    *,
    asked: ReportSettings,
    reading: Reading,
) -> None:
    """Write a report: what limits a run, latencies, stages, timelines, telemetry, energy, findings, the machine.

    An HTML report is one file that needs no network. A PDF needs the extra pdf. The runs are not changed.

    Exit codes: 0 written; 1 a run cannot be read, or typst is not installed; 2 usage; 3 a trace is incomplete, or
    nothing was measured.
    """
    file = asked.output
    if asked.opened and file == STDOUT:
        raise UsageError("--open needs a file; -o - writes to stdout")
    from perfharness.cli.support.progress import steps
    from perfharness.render.report.files import report  # slow to import

    settings = asked.model_dump(include={"price_per_hour", "price_per_kwh", "anonymous"})
    output = Output()
    with steps(output.messages, "reading the traces"):
        made = report(*runs, output=file, **settings, **reading.model_dump())
    if file != STDOUT:
        output.line(str(file))
    output.findings(made.findings)
    if asked.opened and not webbrowser.open(file.absolute().as_uri()):
        raise ResultError(f"No browser could be started; open {file} yourself.")
    raise typer.Exit(exit_code(made.findings) if made.has_numbers else EXIT_CHECK_FAILED)
