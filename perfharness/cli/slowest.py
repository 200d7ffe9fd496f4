"""`perfharness slowest`: the slowest requests beside the typical one, and what was different."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    EXIT_CHECK_FAILED,
    SOURCE,
    SOURCE_HELP,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.support.output import Format, FormatOption, Output, QuietOption, VerboseOption
from perfharness.render.terminal.slowest import print_slowest
from perfharness.render.timeline.batches import write_batches
from perfharness.runs.run import open_run
from perfharness.runs.slowest import DEFAULT_MOST
from perfharness.runs.slowest import slowest as find_slowest


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("slowest", cls=GroupedCommand)(slowest)


def slowest(
    run: Annotated[Path, typer.Argument(metavar=SOURCE, help=SOURCE_HELP)],
    most: Annotated[int, typer.Option("-n", "--requests", min=1, help="So many of each loop.")] = DEFAULT_MOST,
    explained: Annotated[
        bool, typer.Option("--explained", help="Of the explaining pass (--explain), in which more was recorded.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write these requests, each above a typical one, for Perfetto and chrome://tracing.",
            show_default=False,
        ),
    ] = None,
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
    output_format: FormatOption = Format.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The slowest requests beside the typical one: which parts of the difference each stage, kernel, copy and wait has.

    A request is a batch; the parts sum to the difference, and what is within the usual spread is no reason. By latency
    where requests were recorded, else by the duration of batches; warm-up is left out. --verbose shows the stages and
    the GPU work of all of them. Exits with 3 where a trace is incomplete, or there is no batch.
    """
    opened = open_run(run, warmup_batches=warmup_batches, domain=domain, batch_pattern=batch_pattern, nsys=nsys)
    found = find_slowest(opened, most, explained=explained, timelines=timeline is not None)
    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    if output.is_json:
        output.json(found.result.model_dump(mode="json"))
    else:
        print_slowest(output.results, found.result, details=verbose)
    has_any = any(loop.requests for loop in found.result.loops)
    if not has_any:
        output.message(
            "There is no batch that counts, so nothing to show; see `perfharness export --table ranges`, and -w."
        )
    elif timeline is not None:
        write_batches(found.timelines, timeline)
        output.message(f"drawn: {timeline}")
    output.findings(found.findings)
    raise typer.Exit(exit_code(found.findings) if has_any else EXIT_CHECK_FAILED)
