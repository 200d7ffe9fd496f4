"""`perfharness doctor`: what was found, what is missing, what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from perfharness.render.terminal.console import Console
    from perfharness_launcher.doctor import Check

MARKS = {"good": ("ok", "green"), "absent": ("--", "dim"), "warning": ("!", "yellow"), "bad": ("X", "red")}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", cls=GroupedCommand)(doctor)


def doctor(
    nsys: Annotated[Path | None, typer.Option(help="Check this nsys only.")] = None,
    python: Annotated[
        str, typer.Option(help="Interpreter that would run scripts.", show_default="this one")
    ] = sys.executable,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install-nsys",
            help="Get Nsight Systems 2023.4 from Debian's packages into your own folder (190 MB, no root), then check.",
        ),
    ] = False,
) -> None:
    """Check everything that a measurement needs; each nsys found is tried for real.

    Exit codes: 0 something here can measure; 1 nsys could not be installed; 3 nothing can measure.
    """
    import json

    from perfharness.render.terminal.console import Console
    from perfharness_launcher.doctor import check_up
    from perfharness_launcher.nsys.probe import install_nsys

    if install and install_nsys(os.environ) != 0:
        raise typer.Exit(EXIT_FAILED)
    checks = [*check_up(python, os.environ, nsys=nsys), store_check()]
    can_measure = any(check.measures for check in checks)
    if as_json:
        print(json.dumps({"can_measure": can_measure, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print_checks(checks, Console())
    raise typer.Exit(EXIT_OK if can_measure else EXIT_CHECK_FAILED)


def store_check() -> Check:
    """The run store: whether it can be opened. None is made."""
    from perfharness.errors import PerfHarnessError, ToolNotFoundError
    from perfharness.runs.store.location import find_store
    from perfharness.runs.store.register import open_store
    from perfharness_launcher.doctor import Check, Health

    topic = "run store"
    try:
        location = find_store()
        if location is None:
            return Check(topic, Health.ABSENT, "switched off: launches are not stored (PERFHARNESS_STORE)")
        if location.path is not None and not location.path.exists():
            return Check(topic, Health.ABSENT, f"{location}: nothing is stored yet")
        return Check(topic, Health.GOOD, f"{location}, {open_store().count()} runs")
    except ToolNotFoundError as error:
        return Check(topic, Health.ABSENT, "launches are not stored", str(error))
    except PerfHarnessError as error:
        return Check(topic, Health.WARNING, "launches are not stored", str(error))


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """One check a line, its hint below it."""
    from perfharness.render.terminal.console import say, styled

    topic = ""
    for check in checks:
        mark, style = MARKS[check.health.value]
        shown = check.topic if check.topic != topic else ""
        topic = check.topic
        say(console, f"{shown:<12}", styled(f"{mark:<3}", style), check.text)
        if check.hint:
            say(console, f"{'':<15}hint: {check.hint}")
    if not any(check.measures for check in checks):
        say(console, "Nothing here can measure; see the hints above.")
