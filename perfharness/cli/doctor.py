"""`perfharness doctor`: check what this machine can measure."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK
from perfharness.cli.support.output import Output
from perfharness.cli.support.settings import with_settings
from perfharness.model.settings import option

if TYPE_CHECKING:
    from perfharness.render.blocks import Style
    from perfharness_launcher.doctor import Check

MARKS: dict[str, tuple[str, Style]] = {
    "good": ("ok", "good"),
    "absent": ("--", "dim"),
    "warning": ("!", "warning"),
    "bad": ("X", "error"),
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", cls=GroupedCommand)(doctor)


class DoctorSettings(BaseModel):
    """Options of `doctor`."""

    nsys: Path | None = option("Check only this nsys.")
    python: str = option("Interpreter that runs scripts.", default=sys.executable, show_default="this one")
    install_nsys: bool = option(
        "Install Nsight Systems 2023.4 for this user (190 MB, no root), then check.", default=False
    )


@with_settings()
def doctor(*, asked: DoctorSettings, output: Output) -> None:
    """Check what a measurement needs, and try each nsys.

    Exit codes: 0 this machine can measure; 1 nsys could not be installed; 3 this machine cannot measure.
    """
    from perfharness_launcher.doctor import check_up
    from perfharness_launcher.nsys import install_nsys

    if asked.install_nsys and install_nsys(os.environ) != 0:
        raise typer.Exit(EXIT_FAILED)
    checks = [*check_up(asked.python, os.environ, nsys=asked.nsys), history_check()]
    can_measure = any(check.measures for check in checks)
    if output.is_json:
        output.json_document({"can_measure": can_measure, "checks": [asdict(check) for check in checks]})
    else:
        print_checks(checks, output)
    raise typer.Exit(EXIT_OK if can_measure else EXIT_CHECK_FAILED)


def history_check() -> Check:
    """Check whether the history can be opened, without creating one."""
    from perfharness.errors import PerfHarnessError
    from perfharness.runs.history import History, find_place
    from perfharness_launcher.doctor import Check, Health

    topic = "history"
    try:
        place = find_place()
        if place is None:
            return Check(topic, Health.ABSENT, "turned off (PERFHARNESS_HISTORY)")
        if place.get_backend_name() == "sqlite" and not Path(place.database or "").exists():
            return Check(topic, Health.ABSENT, f"{place.database}, empty")
        history = History()
        return Check(topic, Health.GOOD, f"{history.place}, {len(history.runs())} runs")
    except PerfHarnessError as error:
        return Check(topic, Health.WARNING, "runs are not added to the history", str(error))


def print_checks(checks: Sequence[Check], output: Output) -> None:
    """Print one check per line, each followed by its hint."""
    from perfharness.render.blocks import Span

    topic = ""
    for check in checks:
        mark, style = MARKS[check.health.value]
        shown = check.topic if check.topic != topic else ""
        topic = check.topic
        output.line(f"{shown:<12}", Span(f"{mark:<3}", style), check.text)
        if check.hint:
            output.line(f"{'':<15}hint: {check.hint}")
    tracers = dict.fromkeys(check.topic for check in checks if check.measures)
    can = f"This machine can measure (tracer: {', '.join(tracers)}). Next: perfharness demo"
    output.line(can if tracers else "This machine cannot measure; see the hints above.")
