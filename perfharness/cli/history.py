"""`perfharness history`: earlier runs, and a number over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.output import Format, FormatOption, Output
from perfharness.errors import UsageError

FORMS = "give STAGE METRIC, METRIC, add FOLDER, forget ID, or nothing"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("history", cls=GroupedCommand)(history)


def history(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STAGE] METRIC | add FOLDER… | forget ID…",
            help="STAGE: path or last name; without it METRIC is that of the run as a whole.",
            show_default=False,
        ),
    ] = None,
    *,
    script: Annotated[
        str | None, typer.Option("--script", metavar="NAME", help="Only runs of this script.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="List the newest N runs.", metavar="N")] = 20,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """List earlier runs, or print one metric over them and mark a change.

    `perfharness compare history:ID out` compares with an earlier run while its folder exists.

    Exit codes: 0 done; 1 there is no such run or number, or the history cannot be used; 2 usage.
    """
    from perfharness.render.terminal.history import print_runs, print_series, series_json
    from perfharness.runs.history import History, entries_of

    opened, output = History(), Output.of(output_format)
    match words or []:
        case []:
            runs = opened.runs(limit, script)
            if output.is_json:
                output.json({"runs": runs})
            elif runs:
                print_runs(output.results, runs)
            else:
                output.message(f"no runs in {opened.place} yet")
        case ["add", first, *more]:
            from perfharness.bench.suite.run import suite_exit_code

            for folder in (first, *more):
                for entry in entries_of(Path(folder), suite_exit_code):
                    opened.add(entry)
                    output.message(f"added: {entry.run['kind']} {entry.run['id']} ({folder})")
        case ["forget", first, *more]:
            for name in (first, *more):
                output.message(f"forgotten: {opened.forget(name)}")
        case [metric] | [_, metric] as named if metric not in ("add", "forget"):
            series = opened.series(named[0] if len(named) > 1 else "", metric, script)
            if output.is_json:
                output.json(series_json(series))
            else:
                print_series(output.results, series)
        case _:
            raise UsageError(f"history {' '.join(words or [])}: {FORMS}")
