"""`perfharness analyze`: results again, from what is on disk, with another warm-up cut if wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfharness.analysis.combine import combine
from perfharness.analysis.diagnosis import ALONE
from perfharness.cli.options import (
    BatchPatternOption,
    DomainOption,
    NsysOption,
    PlotsOption,
    RejectThrottledOption,
    WarmupOption,
    exit_with,
)
from perfharness.errors import ResultError, UsageError
from perfharness.files import locked
from perfharness.inputs import complete_cut_off, trace_file
from perfharness.model.findings import Finding
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, Tree
from perfharness.report.files import write_json
from perfharness.report.meta import trace_only_meta
from perfharness.report.pictures import require_matplotlib
from perfharness.report.run_folder import (
    ReadOptions,
    analyze_run,
    analyze_trace,
    benchmark_tree,
    is_run_folder,
    read_manifest,
    trace_name,
)
from perfharness.report.terminal import print_result
from perfharness.run_swap import settle


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("analyze")(analyze)


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_TRACE…", help="Run folders, or traces: .sqlite, .nsys-rep or a Parquet folder of nsys."
        ),
    ],
    warmup_batches: WarmupOption = None,
    output_dir: Annotated[
        Path | None, typer.Option("-o", "--output-dir", help="Where the JSON of bare traces goes; default: nowhere.")
    ] = None,
    nsys: NsysOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    reject_throttled: RejectThrottledOption = None,
    plots: PlotsOption = False,
) -> None:
    """Recompute benchmark.json and benchmark_mean.json of runs from the traces in them; or read bare traces.

    Needs no GPU, CUDA, nsys or torch. Exits with 3 where a trace is incomplete or the results in a run folder were made
    of more than is there now, and stay; with 1 where they cannot be written, after they were printed.
    """
    console = Console()
    folders = [run for run in runs if is_run_folder(run)]
    traces = [trace_file(run, nsys) for run in runs if not is_run_folder(run)]
    if traces and reject_throttled:
        raise UsageError("--reject-throttled needs the telemetry of a run folder; a bare trace has none.")
    if folders and output_dir is not None:
        raise UsageError("-o is for bare traces; a run folder's files are written into the folder itself.")
    if plots and traces:
        raise UsageError("--plots draws the telemetry of a run folder; a bare trace has none.")
    if plots:
        require_matplotlib()
        from perfharness.report.telemetry_plots import draw_run
    findings: list[Finding] = []
    not_written = []
    for folder in folders:
        with _alone_in(folder):
            complete_cut_off(folder, nsys)
            summary = analyze_run(
                folder,
                read_manifest(folder),
                warmup_batches=warmup_batches,
                domain=domain,
                batch_pattern=batch_pattern,
                reject_throttled=reject_throttled,
            )
        if summary.not_written is not None:
            not_written.append(summary.not_written)
        console.print(f"{folder / BENCHMARK_MEAN_NAME}", soft_wrap=True, highlight=False)
        print_result(console, summary.mean, summary.findings)
        findings.extend(summary.findings)
        for path in draw_run(folder) if plots else ():
            console.print(f"drawn: {path}", markup=False, highlight=False, soft_wrap=True)
    if traces:
        findings.extend(
            _analyze_traces(console, traces, ReadOptions(warmup_batches or 0, domain, batch_pattern), output_dir)
        )
    if not_written:
        raise ResultError("\n".join(not_written))
    exit_with(findings)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The run folder, in which no other command writes meanwhile. Raises `ResultError` where one does."""
    settle(folder)
    try:
        with locked(folder):
            yield
    except BlockingIOError as error:
        raise ResultError(f"another perfharness is writing to {folder}; wait until it is done") from error


def _analyze_traces(
    console: Console, traces: list[Path], options: ReadOptions, output_dir: Path | None
) -> list[Finding]:
    if len({path.parent / trace_name(path) for path in traces}) < len(traces):
        raise UsageError("The same trace is named twice, by one path or in two formats; name it once.")
    if len({trace_name(path) for path in traces}) < len(traces) and output_dir is not None:
        raise UsageError("Two traces have the same file name; analyze them one at a time, or rename one.")
    others = None if output_dir is None else ALONE  # what is not written is not diagnosed
    analysed = {str(path.parent / trace_name(path)): analyze_trace(path, options, others=others) for path in traces}
    results = {name: result for name, (result, _) in analysed.items()}
    findings = [finding for result in results.values() for finding in result.findings]
    mean: Tree = combine(results, with_data=output_dir is not None)
    print_result(console, mean, findings)
    if output_dir is not None:
        for path, (result, trace_meta) in zip(traces, analysed.values(), strict=True):
            meta = trace_only_meta(trace_meta, result, str(path), options.warmup_batches)
            folder = output_dir / trace_name(path)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / BENCHMARK_NAME, {**benchmark_tree(result), "meta": meta})
        meta = {"findings": [finding.to_json() for finding in findings]}
        write_json(output_dir / BENCHMARK_MEAN_NAME, {**mean, "meta": meta})
    return findings
