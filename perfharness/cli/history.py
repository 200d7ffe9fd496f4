"""`perfharness history`: list earlier runs, or one metric over them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.output import Output
from perfharness.cli.support.settings import with_settings
from perfharness.errors import UsageError
from perfharness.model.settings import option


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("history", cls=GroupedCommand)(history)


class HistorySettings(BaseModel):
    """Options of `history`."""

    script: str | None = option("Only runs of this script.", "", "NAME")
    limit: int = option("List the newest N runs.", "", "N", default=20, ge=1)


@with_settings()
def history(
    words: Annotated[
        list[str] | None,
        argument(
            "[STAGE] METRIC | add FOLDER… | forget ID…",
            "STAGE: path or last name; without it, a metric of the whole run.",
        ),
    ] = None,
    *,
    chosen: HistorySettings,
    output: Output,
) -> None:
    """List earlier runs, or print one metric over them and mark a change.

    To compare with an earlier run whose folder still exists: `perfharness compare history:ID out`.

    Exit codes: 0 success; 1 no such run or metric, or the history cannot be used; 2 usage.
    """
    from perfharness.render.views.history import runs_view, series_json, series_view
    from perfharness.runs.history import History, entries_of

    opened = History()
    match words or []:
        case []:
            runs = opened.runs(chosen.limit, chosen.script)
            if runs or output.is_json:
                output.document({"runs": runs}, runs_view(runs))
            else:
                output.message(f"No runs in {opened.place} yet.")
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
            output.document(series_json(series), series_view(series))
        case _:
            typed = " ".join(words or [])
            raise UsageError(f"history {typed}: give [STAGE] METRIC, add FOLDER, forget ID, or nothing")
