"""`perfharness share`: a run as one file for others, without secrets and names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import NsysOption
from perfharness.cli.support.output import Format, FormatOption, Output, QuietOption
from perfharness.render.terminal.share import print_shared
from perfharness.runs.files.inputs import locate
from perfharness.runs.share.share import share_run, target_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("share", cls=GroupedCommand)(share)


def share(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, a folder of several, or a trace (.sqlite, .nsys-rep).")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.tar.zst", help="The file to write. [default: RUN.tar.zst]"),
    ] = None,
    redact_arguments: Annotated[
        bool, typer.Option("--redact-arguments", help="Remove the arguments of the script too.")
    ] = False,
    with_logs: Annotated[
        bool, typer.Option("--with-logs", help="Keep what the processes printed, redacted; it is left out otherwise.")
    ] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="TEXT", help="Remove this text too, wherever it is; may be repeated."),
    ] = None,
    nsys: NsysOption = None,
    output_format: FormatOption = Format.TEXT,
    quiet: QuietOption = False,
) -> None:
    """Write a run as one compressed file for others, without secrets; its numbers stay as they are.

    Removed are values of environment variables, names of users and hosts, folders, other processes, and what looks like
    a secret. What was removed is printed, and listed in shared.json in the archive. The run itself is not changed.

    Whoever gets it unpacks it (tar --zstd -xf), or gives it to perfharness analyze, diagnose and so on as it is.

    Exit codes: 0 written; 1 it cannot be read or written, or something that was to be removed is still there; 2 usage.
    """
    located = locate(run, nsys)
    target = target_of(located, output)
    shared = share_run(located, target, redact_arguments=redact_arguments, with_logs=with_logs, remove=remove or ())
    streams = Output.of(output_format, quiet=quiet)
    if streams.is_json:
        streams.json({"file": str(shared.path), "bytes": shared.bytes, **shared.record.model_dump()})
    else:
        print_shared(streams.results, shared)
