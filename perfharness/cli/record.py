"""`perfharness record`: record a window of a running process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from perfharness.cli.launch import show_result
from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import EXIT_CHECK_FAILED, EXIT_FAILED, command_line, exit_code
from perfharness.cli.support.output import OUTPUT, FullOutput
from perfharness.cli.support.settings import with_settings
from perfharness.errors import NothingRecordedError
from perfharness.model.settings import option

WINDOW = "Window"


class RecordSettings(BaseModel):
    """Options of `record`."""

    batches: int = option("Batches to record per process.", WINDOW, default=50, ge=1)
    timeout_s: float = option(
        "Give up after this time without a batch.", WINDOW, "SECONDS", flags="--timeout", default=60.0, gt=0
    )
    telemetry: bool = option("Sample GPUs, host and processes.", WINDOW, default=True, negative="--no-telemetry")
    output_dir: Path = option("Folder of the results.", OUTPUT, flags="-o --output-dir", default=Path("win"))


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("record", cls=GroupedCommand)(record_verb)


@with_settings()
def record_verb(
    target: Annotated[str, argument("PID|OUT", "A process (and its children), or the folder of a running launch.")],
    *,
    asked: RecordSettings,
    output: FullOutput,
) -> None:
    """Record the next batches of a running process, which keeps running.

    Example: PERFHARNESS_ON_DEMAND=1 python service.py & perfharness record $! --batches 50 -o win

    Start the process with PERFHARNESS_ON_DEMAND=1 and a PerfRecorder, or by `perfharness launch --on-demand`. It can be
    recorded any number of times.

    Exit codes: 0 success; 1 the process cannot be recorded now; 2 usage; 3 no batch ran, or there is an error finding.
    """
    from perfharness.cli.support.progress import steps
    from perfharness.runs.record import record

    try:
        with steps(output.messages, f"recording {asked.batches} batches") as step:
            result = record(
                int(target) if target.isdecimal() else Path(target),
                **asked.model_dump(),
                command=command_line(),
                progress=step.advance,
                say=step.begin,
            )
    except NothingRecordedError as error:
        output.error(f"perfharness: {error}")
        raise typer.Exit(EXIT_CHECK_FAILED) from None
    show_result(result, output)
    raise typer.Exit(EXIT_FAILED if result.summary.not_written else exit_code(result.findings))
