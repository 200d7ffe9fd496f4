"""`perfharness analyze`: results again, from what is on disk, with another warm-up cut if wanted."""

from __future__ import annotations

from collections.abc import Sequence
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
    ParallelOption,
    PlotsOption,
    RejectThrottledOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.support.output import OUTPUT, Format, FormatOption, Output, QuietOption, VerboseOption
from perfharness.errors import ResultError, UsageError
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, Tree
from perfharness.render.terminal.console import say
from perfharness.render.terminal.results import print_result
from perfharness.render.terminal.series import print_cold_start, print_repeat, print_scaling
from perfharness.runs.analyze import AnalyzedRuns, AnalyzedTraces, analyze_runs, analyze_traces
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.run_folder import ReadAs, RunSummary, benchmark_tree


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("analyze", cls=GroupedCommand)(analyze)


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar=f"{SOURCE}…", help=SOURCE_HELP),
    ],
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    reject_throttled: RejectThrottledOption = None,
    parallel: ParallelOption = None,
    nsys: NsysOption = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help="Where the JSON of bare traces goes; default: nowhere.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    output_format: FormatOption = Format.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    plots: PlotsOption = False,
) -> None:
    """Recompute benchmark.json and benchmark_mean.json of runs from the traces in them; or read bare traces.

    Needs no GPU, CUDA, nsys or torch. Exits with 3 if a trace is incomplete or nothing could be measured; with 1 if
    results cannot be written, after they were printed.
    """
    located = [locate(run, nsys) for run in runs]
    traces = [one for one in located if one.trace is not None]
    if traces and reject_throttled:
        raise UsageError("--reject-throttled needs the telemetry of a run folder; a bare trace has none.")
    if len(traces) < len(located) and output_dir is not None:
        raise UsageError("-o is for bare traces; a run folder's files are written into the folder itself.")
    if plots and traces:
        raise UsageError("--plots draws the telemetry of a run folder; a bare trace has none.")
    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    read_as = ReadAs(
        warmup_batches, domain, batch_pattern, reject_throttled, None if parallel is None else parallel.value
    )
    documents: dict[str, Tree] = {}
    analyzed: list[AnalyzedRuns | AnalyzedTraces] = []
    not_written: list[str] = []
    for one in located:
        if one.trace is None:
            found = analyze_runs(one, read_as, nsys)
            show_runs(found, output, documents, plots=plots)
            analyzed.append(found)
            not_written += found.not_written
    if traces:
        read = analyze_traces(traces, read_as, output_dir, with_data=output.is_json)
        show_traces(traces, read, output, documents)
        analyzed.append(read)
    if output.is_json:
        output.json_of(documents)
    findings = [finding for one in analyzed for finding in one.findings]
    output.findings(findings)
    if not_written:
        raise ResultError("\n".join(not_written))
    raise typer.Exit(exit_code(findings) if all(one.has_numbers for one in analyzed) else EXIT_CHECK_FAILED)


def show_runs(analyzed: AnalyzedRuns, output: Output, documents: dict[str, Tree], *, plots: bool) -> None:
    """Print each run, then the table of a series; as JSON, add them to the documents."""
    for summary in analyzed.summaries:
        _show_run(analyzed, summary, output, documents)
        if plots:
            from perfharness.render.charts.telemetry import draw_run

            for path in draw_run(summary.folder):
                output.message(f"drawn: {path}")
    if output.is_json:
        return
    if analyzed.scaling is not None:
        print_scaling(output.results, analyzed.scaling)
    if analyzed.cold_start is not None:
        print_cold_start(output.results, analyzed.cold_start)
    if analyzed.repeat is not None:
        print_repeat(output.results, analyzed.repeat)


def _show_run(analyzed: AnalyzedRuns, summary: RunSummary, output: Output, documents: dict[str, Tree]) -> None:
    process, results = analyzed.located.process, analyzed.results_of(summary)
    tree, written = summary.mean, summary.folder / BENCHMARK_MEAN_NAME
    if process is not None:
        written = summary.folder / process / BENCHMARK_NAME
        tree = summary.mean_of(process)
    if output.is_json:
        whole = summary.mean if process is None else {}
        documents[str(summary.folder if process is None else analyzed.located.path)] = whole or {
            key: value for result in results.values() for key, value in benchmark_tree(result).items()
        }
        return
    say(output.results, str(written))
    if tree:
        print_result(output.results, tree, results)


def show_traces(
    traces: Sequence[Located], analyzed: AnalyzedTraces, output: Output, documents: dict[str, Tree]
) -> None:
    """Print what bare traces have in common; as JSON, add it to the documents."""
    if output.is_json:
        documents[", ".join(str(one.path) for one in traces)] = analyzed.mean
    else:
        print_result(output.results, analyzed.mean, analyzed.results, has_gpu=analyzed.has_gpu)
        if not any(result.diagnosis for result in analyzed.results.values()):
            say(output.results, "What limits each stage: perfharness diagnose TRACE")
