"""`perfharness baseline`: runs by a name, for `compare --baseline NAME`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from perfharness.cli.runs import StoreOption, open_existing
from perfharness.cli.support.help import FullSummaries, GroupedCommand
from perfharness.cli.support.options import CONTEXT
from perfharness.cli.support.output import Format, FormatOption, Output

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the baseline, as `main`.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb = typer.Typer(cls=FullSummaries, help="Runs by a name, to compare others with.", context_settings=CONTEXT)
    verbs: dict[str, Callable[..., None]] = {"save": save, "list": list_baselines, "delete": delete}
    for name, function in verbs.items():
        verb.command(name, cls=GroupedCommand, context_settings=CONTEXT)(function)
    app.add_typer(verb, name="baseline")


def save(
    name: NameArgument,
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Ids, parts of ids, folders, or `latest`, which is the default.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Give launches, repeats or suites a name, in place of those that had it; `compare --baseline NAME` takes them.

    Exit codes: 0 saved; 1 there is no such run, or the store cannot be written; 2 usage.
    """
    from perfharness.errors import UsageError
    from perfharness.runs.store.filters import LATEST
    from perfharness.runs.store.records import COMPARABLE
    from perfharness.runs.store.register import open_store

    opened, output = open_store(store), Output.of()
    found = [opened.find(one) for one in run or [LATEST]]
    for one in found:
        if one.kind not in COMPARABLE:
            raise UsageError(
                f"{one.run_id} is a {one.kind}, whose launches differ on purpose; name a launch, a repeat, a suite of"
                " bench or a result of trtexec"
            )
    for one in opened.save_baseline(name, [one.run_id for one in found]):
        bad = f"; it ended with exit code {one.exit_code}" if one.exit_code else ""
        output.message(f"baseline {name}: {one.kind} {one.run_id}{bad}")


def list_baselines(*, output_format: FormatOption = Format.TEXT, store: StoreOption = None) -> None:
    """List the baselines with their runs.

    Exit codes: 0 listed, or there are none; 1 the store cannot be read.
    """
    from perfharness.render.terminal.stored_runs import print_baselines

    output = Output.of(output_format)
    opened = open_existing(store, output)
    found = {} if opened is None else opened.baselines()
    if output.is_json:
        output.json(
            {"baselines": {name: [run.model_dump(mode="json") for run in runs] for name, runs in found.items()}}
        )
    elif found:
        print_baselines(output.results, found)
    elif opened is not None:
        output.message(f"no baseline in {opened.location}")


def delete(name: NameArgument, store: StoreOption = None) -> None:
    """Remove a baseline; its runs stay in the store.

    Exit codes: 0 done; 1 there is none of that name, or the store cannot be written.
    """
    from perfharness.runs.store.register import open_store

    open_store(store).delete_baseline(name)
    Output.of().message(f"deleted: baseline {name}")
