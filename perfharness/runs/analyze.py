"""Compute results again from the files of runs, of one process, or of bare traces."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfharness.analysis.stages.tree import combine
from perfharness.errors import UsageError
from perfharness.model.findings import Finding
from perfharness.model.manifest import RunManifest
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, ProcessResult, Tree
from perfharness.runs.files.cut_off import complete_run
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.json_files import write_json
from perfharness.runs.files.meta import trace_only_meta
from perfharness.runs.files.run_folder import (
    AS_LAUNCHED,
    ReadAs,
    RunSummary,
    alone_in,
    analyze_run,
    analyze_trace,
    benchmark_tree,
    load_manifest,
    read_manifest,
)
from perfharness.runs.stage_lines import names_findings
from perfharness_launcher.staging import new_run_id, staging

if TYPE_CHECKING:
    from perfharness.runs.series.model import Series


@dataclass(frozen=True)
class AnalyzedRuns:
    """Results of a run, or of the runs of a `series`."""

    located: Located
    summaries: Sequence[RunSummary]
    series: Series | None = None

    def results_of(self, summary: RunSummary) -> dict[str, ProcessResult]:
        """Requested results of a run: of all processes, or of one."""
        return {name: result for name, result in summary.results.items() if self.located.names_process(name)}

    @property
    def findings(self) -> list[Finding]:
        """Findings about the requested results; in a series, names of processes begin with their runs."""
        over_launches = [] if self.series is None else self.series.findings
        return over_launches + [
            replace(finding, process=f"{summary.folder.name}/{finding.process}")
            if finding.process and self.located.is_series
            else finding
            for summary in self.summaries
            for finding in summary.findings
            if finding.process is None or self.located.names_process(finding.process)
        ]

    @property
    def not_written(self) -> list[str]:
        """Why results were not written, one sentence per run."""
        return [summary.not_written for summary in self.summaries if summary.not_written is not None]

    @property
    def has_numbers(self) -> bool:
        """Whether any time was measured."""
        return any(_has_numbers(self.results_of(summary)) for summary in self.summaries)


@dataclass(frozen=True)
class AnalyzedTraces:
    """Results of bare traces, by path without suffix, and their mean."""

    mean: Tree
    results: Mapping[str, ProcessResult]
    has_gpu: bool

    @property
    def findings(self) -> list[Finding]:
        """Findings about the traces and the mean."""
        of_traces = [finding for result in self.results.values() for finding in result.findings]
        return [*of_traces, *names_findings(self.mean)]

    @property
    def has_numbers(self) -> bool:
        """Whether any time was measured."""
        return _has_numbers(self.results)


def _has_numbers(results: Mapping[str, ProcessResult]) -> bool:
    return any(result.stats_minus_warmup or len(result.entries) for result in results.values())


def analyze(
    path: str | Path,
    *,
    warmup_batches: int | None = None,
    domain: str | None = None,
    batch_pattern: str | None = None,
    parallel: Literal["auto", "data", "model"] | None = None,
    output_dir: str | Path | None = None,
) -> AnalyzedRuns | AnalyzedTraces:
    """Compute the results of a run folder again and write them into it, or read a bare trace. Needs no GPU or CUDA.

    Args:
        path: as in `perfharness.open_run`.
        warmup_batches: batches to drop at both ends of each loop (default: as launched, or 0 for a trace).
        domain, batch_pattern: as in `perfharness.open_run`.
        parallel: whether ranks process different items (`data`) or the same (`model`) (default: as launched).
        output_dir: folder for results of a bare trace (default: not written).

    Raises:
        ResultError: the path is not a run, or another perfharness is writing to it.
        TraceError: a bare trace cannot be read.
        UsageError: an option does not fit the path.
    """
    located = locate(Path(path))
    read_as = ReadAs(warmup_batches, domain, batch_pattern, parallel)
    if located.trace is None:
        if output_dir is not None:
            raise UsageError("-o is for bare traces. Drop it: files of a run are written into its folder.")
        return analyze_runs(located, read_as)
    return analyze_traces([located], read_as, None if output_dir is None else Path(output_dir))


def analyze_runs(located: Located, read_as: ReadAs = AS_LAUNCHED, *, write: bool = True) -> AnalyzedRuns:
    """Analyse the run or runs of a folder; with `write`, also write the results. Raises `ResultError`."""
    if not write:
        read = [analyze_run(run_dir, read_manifest(run_dir), read_as, write=False) for run_dir in located.runs]
        return AnalyzedRuns(located, read)
    summaries = []
    for run_dir in located.runs:
        with alone_in(run_dir):
            complete_run(run_dir)
            summaries.append(analyze_run(run_dir, read_manifest(run_dir), read_as))
    if not located.is_series:
        return AnalyzedRuns(located, summaries)
    from perfharness.runs.series.summary import update_series  # not needed for one run

    return AnalyzedRuns(located, summaries, update_series(located.path, summaries))


def join_parts(located: Sequence[Located], output_dir: Path, read_as: ReadAs = AS_LAUNCHED) -> AnalyzedRuns:
    """Join the runs of nodes of one launch in another folder. Raises `UsageError`, `ResultError`.

    The given folders stay unchanged, but missing traces of a killed launcher are made in them.
    """
    from perfharness.cluster.join import Part, join  # rarely needed

    parts = [Part(one.path, _part_manifest(one)) for one in located]
    nodes = [node for part in parts for node in part.nodes]
    if len({node.launch for node in nodes}) > 1:
        raise UsageError("-o: these runs are of different launches; name the nodes of one launch.")
    if len({node.rank for node in nodes}) < len(nodes):
        raise UsageError("-o: two of these runs are of the same node; name each node once.")
    parts.sort(key=lambda part: (part.nodes[0].rank, -len(part.nodes)))
    with staging(output_dir.absolute(), new_run_id()) as stage:
        manifest = join(parts, stage.path, shutil.copytree, lambda rank: "its run was not named")
        stage.write_manifest(manifest)
        summary = analyze_run(stage.path, manifest, read_as)
        place = stage.finish()
    return AnalyzedRuns(locate(place), [replace(summary, folder=place)])


def _part_manifest(located: Located) -> RunManifest:
    manifest = None
    if located.runs == (located.path,):
        if not load_manifest(located.path).complete:
            with alone_in(located.path):
                complete_run(located.path)
        manifest = read_manifest(located.path)
    if manifest is None or (manifest.node is None and not manifest.missing_nodes):
        raise UsageError(
            f"-o: {located.path} is not a node's run of `perfharness launch --nodes`. Analyze it in place, without -o."
        )
    return manifest


def analyze_traces(
    traces: Sequence[Located],
    read_as: ReadAs = AS_LAUNCHED,
    output_dir: Path | None = None,
    *,
    with_data: bool = True,
    with_diagnosis: bool = False,
) -> AnalyzedTraces:
    """Analyse bare traces together.

    Args:
        with_data: whether `mean` has every range.
        with_diagnosis: whether to diagnose each trace (doubles the time); always done if results are written.

    Raises `TraceError` if a trace cannot be read, `UsageError` if one is named twice.
    """
    paths = {str(one.trace.parent / one.name): one.trace for one in traces if one.trace is not None}
    if len(paths) < len(traces):
        raise UsageError("A trace is named twice, perhaps in two formats; name it once.")
    if len({one.name for one in traces}) < len(traces) and output_dir is not None:
        raise UsageError("Two traces have the same file name; rename one, or analyze them separately.")
    options = read_as.options()
    with_diagnosis |= output_dir is not None
    analysed = {name: analyze_trace(path, options, with_diagnosis=with_diagnosis) for name, path in paths.items()}
    results = {name: one.result for name, one in analysed.items()}
    mean: Tree = combine(results, with_data=with_data or output_dir is not None)
    analyzed = AnalyzedTraces(mean, results, has_gpu=any(one.trace_meta.device_names for one in analysed.values()))
    if output_dir is not None:
        for name, one in analysed.items():
            meta = trace_only_meta(one.trace_meta, one.result, str(paths[name]), options.warmup_batches)
            folder = output_dir / Path(name).name
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / BENCHMARK_NAME, {**benchmark_tree(one.result), "meta": meta})
        meta = {"findings": [finding.to_json() for finding in analyzed.findings]}
        write_json(output_dir / BENCHMARK_MEAN_NAME, {**mean, "meta": meta})
    return analyzed
