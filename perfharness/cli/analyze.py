"""`perfharness analyze`: results again, from what is on disk, with another warm-up cut if wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfharness.cli.help import GroupedCommand
from perfharness.cli.options import (
    EXIT_CHECK_FAILED,
    SOURCE,
    SOURCE_HELP,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    PlotsOption,
    RejectThrottledOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.output import OUTPUT, Format, FormatOption, Output, QuietOption, VerboseOption
from perfharness.errors import ResultError, UsageError

if TYPE_CHECKING:
    from perfharness.analysis.analysis import AnalysisOptions
    from perfharness.model.findings import Finding
    from perfharness.model.result import ProcessResult, Tree
    from perfharness.report.locate import Located
    from perfharness.report.run_folder import RunSummary


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

    Needs no GPU, CUDA, nsys or torch. Exits with 3 where a trace is incomplete, nothing could be measured, or the
    results in a run folder were made of more than is there now, and stay; with 1 where they cannot be written, after
    they were printed.
    """
    from perfharness.analysis.analysis import AnalysisOptions
    from perfharness.inputs import locate_readable
    from perfharness.render.charts.drawing import require_charts

    located = [locate_readable(run, nsys) for run in runs]
    traces = [one for one in located if one.trace is not None]
    if traces and reject_throttled:
        raise UsageError("--reject-throttled needs the telemetry of a run folder; a bare trace has none.")
    if len(traces) < len(located) and output_dir is not None:
        raise UsageError("-o is for bare traces; a run folder's files are written into the folder itself.")
    if plots and traces:
        raise UsageError("--plots draws the telemetry of a run folder; a bare trace has none.")
    if plots:
        require_charts()
    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    options = _Options(warmup_batches, domain, batch_pattern, reject_throttled, plots, nsys)
    documents: dict[str, Tree] = {}
    findings: list[Finding] = []
    measured = True
    for one in located:
        if one.trace is None:
            found, any_numbers = _analyze_runs(one, options, output, documents)
            findings += found
            measured = measured and any_numbers
    if traces:
        found, any_numbers = _analyze_traces(
            traces, AnalysisOptions(warmup_batches or 0, domain, batch_pattern), output_dir, output, documents
        )
        findings += found
        measured = measured and any_numbers
    if output.is_json:
        output.json_of(documents)
    output.findings(findings)
    if options.not_written:
        raise ResultError("\n".join(options.not_written))
    raise typer.Exit(exit_code(findings) if measured else EXIT_CHECK_FAILED)


class _Options:
    """Options of the command line; None: as in the run."""

    def __init__(
        self,
        warmup_batches: int | None,
        domain: str | None,
        batch_pattern: str | None,
        reject_throttled: bool | None,
        plots: bool,
        nsys: Path | None,
    ) -> None:
        self.plots = plots
        self.nsys = nsys
        self.not_written: list[str] = []
        self.reading: dict[str, Any] = {
            "warmup_batches": warmup_batches,
            "domain": domain,
            "batch_pattern": batch_pattern,
            "reject_throttled": reject_throttled,
        }


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The run folder, in which no other command writes meanwhile. Raises `ResultError` where one does."""
    from perfharness.files import locked
    from perfharness.run_swap import settle

    settle(folder)
    try:
        with locked(folder):
            yield
    except BlockingIOError as error:
        raise ResultError(f"another perfharness is writing to {folder}; wait until it is done") from error


def _analyze_runs(
    located: Located, options: _Options, output: Output, documents: dict[str, Tree]
) -> tuple[list[Finding], bool]:
    """Analyse the run, or all runs of a folder; what was found, and whether there is any number."""
    from perfharness.inputs import complete_cut_off
    from perfharness.report.run_folder import analyze_run, read_manifest

    findings: list[Finding] = []
    summaries = []
    for run_dir in located.runs:
        with _alone_in(run_dir):
            complete_cut_off(run_dir, options.nsys)
            summary = analyze_run(run_dir, read_manifest(run_dir), **options.reading)
        summaries.append(summary)
        results = summary.results
        if located.process is not None:
            results = {name: result for name, result in results.items() if name == located.process}
        _show(located, run_dir, summary, results, output, documents)
        if summary.not_written is not None:
            options.not_written.append(summary.not_written)
        before = f"{run_dir.name}/" if located.is_series else ""
        findings += [
            replace(finding, process=before + finding.process) if finding.process else finding
            for finding in summary.findings
            if finding.process is None or located.process in (None, finding.process)
        ]
        if options.plots:
            from perfharness.render.charts.telemetry import draw_run

            for path in draw_run(run_dir):
                output.message(f"drawn: {path}")
    if located.is_series:
        _conclude_series(located, summaries, output)
    shown = [result for summary in summaries for name, result in summary.results.items()
             if located.process in (None, name)]  # fmt: skip
    return findings, _has_numbers(shown)


def _show(
    located: Located,
    run_dir: Path,
    summary: RunSummary,
    results: dict[str, ProcessResult],
    output: Output,
    documents: dict[str, Tree],
) -> None:
    from perfharness.analysis.combine import combine
    from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME
    from perfharness.report.console import say
    from perfharness.report.run_folder import benchmark_tree
    from perfharness.report.terminal import print_result

    tree = summary.mean
    written = run_dir / BENCHMARK_MEAN_NAME
    if located.process is not None:
        written = run_dir / located.process / BENCHMARK_NAME
        tree = {**combine(results, with_data=False), "meta": summary.mean["meta"]} if results else {}
    if output.is_json:
        whole = summary.mean if located.process is None else {}
        documents[str(run_dir if located.process is None else located.path)] = whole or {
            key: value for result in results.values() for key, value in benchmark_tree(result).items()
        }
        return
    say(output.results, str(written))
    if tree:
        print_result(output.results, tree, (result.entries for result in results.values()))


def _has_numbers(results: Sequence[ProcessResult]) -> bool:
    """Whether there is a time of anything."""
    return any(result.stats_minus_warmup or len(result.entries) for result in results)


def _conclude_series(located: Located, summaries: Sequence[RunSummary], output: Output) -> None:
    """The table of a sweep or of cold starts, of the runs' new numbers; what the launch itself noted stays."""
    from perfharness.render.series import print_cold_start, print_scaling
    from perfharness.runs.cold_start import cold_starts_again
    from perfharness.runs.sweep import scaling_again

    scaling = scaling_again(located.path, summaries)
    if scaling is not None and not output.is_json:
        print_scaling(output.results, scaling)
    found = cold_starts_again(located.path, summaries)
    if found is not None and not output.is_json:
        print_cold_start(output.results, found)


def _analyze_traces(
    traces: Sequence[Located],
    options: AnalysisOptions,
    output_dir: Path | None,
    output: Output,
    documents: dict[str, Tree],
) -> tuple[list[Finding], bool]:
    from perfharness.analysis.combine import combine
    from perfharness.analysis.diagnosis import ALONE
    from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME
    from perfharness.report.files import write_json
    from perfharness.report.meta import trace_only_meta
    from perfharness.report.run_folder import analyze_trace, benchmark_tree
    from perfharness.report.terminal import print_result

    paths = [one.trace for one in traces if one.trace is not None]
    if len({(path.parent, one.name) for path, one in zip(paths, traces, strict=True)}) < len(traces):
        raise UsageError("The same trace is named twice, by one path or in two formats; name it once.")
    if len({one.name for one in traces}) < len(traces) and output_dir is not None:
        raise UsageError("Two traces have the same file name; analyze them one at a time, or rename one.")
    others = None if output_dir is None else ALONE  # what is not written is not diagnosed
    analysed = [analyze_trace(path, options, others=others) for path in paths]
    results = {
        str(path.parent / one.name): result for path, one, (result, _) in zip(paths, traces, analysed, strict=True)
    }
    findings = [finding for result in results.values() for finding in result.findings]
    mean: Tree = combine(results, with_data=output_dir is not None or output.is_json)
    has_gpu = any(meta.device_names for _, meta in analysed)
    if output.is_json:
        documents[", ".join(str(one.path) for one in traces)] = mean
    else:
        print_result(output.results, mean, (result.entries for result in results.values()), has_gpu=has_gpu)
    if output_dir is not None:
        for one, (result, trace_meta) in zip(traces, analysed, strict=True):
            meta = trace_only_meta(trace_meta, result, str(one.trace), options.warmup_batches)
            folder = output_dir / one.name
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / BENCHMARK_NAME, {**benchmark_tree(result), "meta": meta})
        meta = {"findings": [finding.to_json() for finding in findings]}
        write_json(output_dir / BENCHMARK_MEAN_NAME, {**mean, "meta": meta})
    return findings, _has_numbers(list(results.values()))
