"""`perfharness doctor`: what was found, what is missing, what to do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_OK
from perfharness_launcher.checkup import Check, Health, check_up

MARKS = {
    Health.GOOD: ("ok", "green"),
    Health.ABSENT: ("--", "dim"),
    Health.WARNING: ("!", "yellow"),
    Health.BAD: ("X", "red"),
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(doctor)


def doctor(
    nsys: Annotated[Path | None, typer.Option(help="Look at this nsys only.")] = None,
    python: Annotated[
        str, typer.Option(help="Interpreter that would run scripts.", show_default="this one")
    ] = sys.executable,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at everything that a measurement needs; each nsys found is tried for real.

    Exit codes: 0 something here can measure; 3 nothing can.
    """
    checks = check_up(python, os.environ, nsys=nsys)
    can_measure = any(check.measures for check in checks)
    if as_json:
        report = {"can_measure": can_measure, "checks": [check.to_json() for check in checks]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print_checks(checks, Console())
    raise typer.Exit(EXIT_OK if can_measure else EXIT_CHECK_FAILED)


def print_checks(checks: list[Check], console: Console) -> None:
    """One check a line, its cure below it."""
    topic = ""
    for check in checks:
        mark, style = MARKS[check.health]
        shown = check.topic if check.topic != topic else ""
        topic = check.topic
        console.print(f"{shown:<12}", end="")
        console.print(f"{mark:<3}", style=style, end="")
        console.print(check.text, markup=False, highlight=False, soft_wrap=True)
        if check.cure:
            console.print(f"{'':<15}cure: {check.cure}", markup=False, highlight=False, soft_wrap=True)
    if not any(check.measures for check in checks):
        console.print("Nothing here can measure; see the cures above.")
