"""`perfharness dashboard`: show earlier and running launches in a browser."""

from __future__ import annotations

import os
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.output import Output
from perfharness.cli.support.settings import with_settings
from perfharness.distribution import install_command
from perfharness.errors import ResultError, ToolNotFoundError
from perfharness.model.environment import HISTORY
from perfharness.model.settings import option


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("dashboard", cls=GroupedCommand)(dashboard)


class DashboardSettings(BaseModel):
    """Options of `dashboard`."""

    history: str | None = option(f"Database of the history, a path or postgresql://… [default: ${HISTORY}]")
    port: int = option("Port on 127.0.0.1; 0 takes a free one.", default=8050, ge=0, le=65535)
    opened: bool = option("Open a browser.", flags="--open", default=False)


@with_settings()
def dashboard(
    folders: Annotated[
        list[Path] | None,
        argument(
            "[OUT…]",
            "Runs, repeats, suites of bench, and folders to search for running ones. [default: the history and "
            "the current folder]",
        ),
    ] = None,
    *,
    asked: DashboardSettings,
) -> None:
    """Show earlier and running launches, comparisons and reports in a browser, until Ctrl-C.

    Listens on 127.0.0.1 only, needs no network, and changes no run. Needs the extra dashboard.

    Exit codes: 0 ended by Ctrl-C; 1 dash is not installed, the history cannot be read, or no browser could be started;
    2 usage.
    """
    if asked.history is not None:
        os.environ[HISTORY] = asked.history
    try:
        import_module("altair")  # else the first report waits for it
        from perfharness.dashboard.app import make_app, make_server_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "perfharness":
            raise
        raise ToolNotFoundError(
            f"The dashboard needs {error.name}. Install it: {install_command('dashboard')}"
        ) from error
    from perfharness.dashboard.known import KnownRuns

    known = KnownRuns(folders or [])
    if asked.history is not None:
        known.newest(1)  # raises `HistoryError` now instead of on every page
    server = make_server_of(make_app(known), asked.port)
    place = f"http://{server.host}:{server.port}/"
    Output().line(place)
    if asked.opened and not webbrowser.open(place):
        raise ResultError(f"No browser could be started; open {place} yourself.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
