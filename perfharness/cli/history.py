"""`perfharness history`: earlier runs, and a number over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, Field

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.output import Output
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.model.settings import Option

FORMS = "give STAGE METRIC, METRIC, add FOLDER, forget ID, or nothing"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("history", cls=GroupedCommand)(history)


class HistorySettings(BaseModel):
    """What is listed."""

    script: Annotated[str | None, Option(("--script",), "", "Only runs of this script.", metavar="NAME")] = None
    limit: Annotated[int, Option(("--limit",), "", "List the newest N runs.", metavar="N")] = Field(default=20, ge=1)


@with_settings()
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
    chosen: HistorySettings,
    output: Output,
) -> None:
    """List earlier runs, or print one metric over them and mark a change.

    `perfharness compare history:ID out` compares with an earlier run while its folder exists.

    Exit codes: 0 done; 1 there is no such run or number, or the history cannot be used; 2 usage.
    """
    from perfharness.render.views.history import runs_view, series_json, series_view
    from perfharness.runs.history import History, entries_of

    opened = History()
    match words or []:
        case []:
            runs = opened.runs(chosen.limit, chosen.script)
            if output.is_json:
                output.json_document({"runs": runs})
            elif runs:
                output.show(runs_view(runs))
            else:
                output.message(f"no runs in {opened.place} yet")
        case ["add", first, *more]:
            from perfharness.bench.run import suite_exit_code

            for folder in (first, *more):
                for entry in entries_of(Path(folder), suite_exit_code):
                    opened.add(entry)
                    output.message(f"added: {entry.run['kind']} {entry.run['id']} ({folder})")
        case ["forget", first, *more]:
            for name in (first, *more):
                output.message(f"forgotten: {opened.forget(name)}")
        case [metric] | [_, metric] as named if metric not in ("add", "forget"):
            series = opened.series(named[0] if len(named) > 1 else "", metric, chosen.script)
            if output.is_json:
                output.json_document(series_json(series))
            else:
                output.show(series_view(series))
        case _:
            raise UsageError(f"history {' '.join(words or [])}: {FORMS}")
