"""Read the manifest of a run folder, and analyse its traces into benchmark.json and benchmark_mean.json.

Needs no GPU, CUDA, nsys or torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import Pass, PassEvidence, RunDiagnosis, agreement, find_evidence
from perfharness.analysis.stages.children import with_children_apart
from perfharness.analysis.stages.entries import entry_table
from perfharness.analysis.stages.startup import startup
from perfharness.analysis.stages.throughput import ALL_SEPARATE, Sharing
from perfharness.analysis.stages.tree import combine, outside_tree
from perfharness.errors import ResultError, UsageError
from perfharness.files import locked, read_model, reason_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import RecorderJournal
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, RunManifest, is_part_of
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, ProcessResult, Tree
from perfharness.model.rounding import rounded
from perfharness.progress import in_steps
from perfharness.runs.explain import (
    FAILED,
    explaining_findings,
    explaining_folder,
    explaining_pass_failed,
    explaining_pass_missing,
    usable_processes,
)
from perfharness.runs.files.json_files import RANGES_NAME, write_json
from perfharness.runs.files.meta import mean_meta, process_meta
from perfharness.runs.files.process_analysis import OnAnalysis, ProcessAnalyzer, TraceResult, result_of
from perfharness.runs.files.process_traces import bare_trace
from perfharness.runs.stage_lines import names_findings
from perfharness.runs.telemetry import MachineSide
from perfharness_launcher.staging import has_numbers

if TYPE_CHECKING:
    from perfharness.runs.ranks import RankComparison


@dataclass(frozen=True)
class ReadAs:
    """How to read runs and traces (default: as launched, and bare traces without warm-up)."""

    warmup_batches: int | None = None
    domain: str | None = None
    batch_pattern: str | None = None
    parallel: Literal["auto", "data", "model"] | None = None

    def options(self, launched: RunManifest | None = None) -> AnalysisOptions:
        """Options with defaults of the launch. Raises `UsageError`."""
        if self.warmup_batches is not None and self.warmup_batches < 0:
            raise UsageError(f"warmup_batches is {self.warmup_batches}; use 0 or more.")
        names = [field.name for field in fields(self)]
        values = {} if launched is None else {name: getattr(launched, name) for name in names}
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, "")}
        return AnalysisOptions(**{**values, **given})


AS_LAUNCHED = ReadAs()


@dataclass(frozen=True)
class RunSummary:
    """Results of a run: mean tree, results of processes, and findings.

    Args:
        not_written: why the files could not be written, or None.
        failed, sharing, helpers: arguments of `combine` for the mean.
        evidence: basis of each process's diagnosis.
    """

    folder: Path
    mean: Tree
    results: dict[str, ProcessResult]
    findings: list[Finding]
    not_written: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    sharing: Sharing = ALL_SEPARATE
    helpers: frozenset[str] = frozenset()
    evidence: Mapping[str, PassEvidence] = field(default_factory=dict)

    def mean_of(self, process: str) -> Tree:
        """Mean of a process and its children; empty if nothing was measured."""
        results = {name: result for name, result in self.results.items() if is_part_of(process, name)}
        if not results:
            return {}
        failed = {
            name: how for name, how in self.failed.items() if is_part_of(process, name) or is_part_of(name, process)
        }
        sharing = self.sharing if len(results) > 1 else ALL_SEPARATE  # its items are not shared
        mean = combine(results, with_data=False, failed=failed, sharing=sharing, helpers=self.helpers)
        return {**mean, "meta": self.mean["meta"]}


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the run folder. Raises `ResultError` if another command is writing to it."""
    try:
        with locked(folder):
            yield
    except BlockingIOError as error:
        raise ResultError(f"another perfharness is writing to {folder}; wait for its end") from error


def load_manifest(folder: Path) -> RunManifest:
    """Read the manifest of a run. Raises `ResultError` if missing or unreadable."""
    hint = "it is damaged, or of another program."
    manifest = read_model(folder / MANIFEST_NAME, RunManifest, hint)
    if manifest is None:
        raise ResultError(
            f"{folder} is not a run folder (no {MANIFEST_NAME}); name the -o folder of a launch, or a trace."
        )
    return manifest


def read_manifest(folder: Path) -> RunManifest:
    """Read the manifest, with a finding if the launcher was killed. Raises `ResultError`."""
    manifest = load_manifest(folder)
    if manifest.complete:
        return manifest
    message = "The launcher was killed: the ends of the processes are unknown, and traces may lack their end."
    is_read = any(process.left_traces for process in manifest.processes)
    hint = "" if is_read else f"Run `perfharness analyze {folder}` to make the missing traces."
    found = Finding("run-cut-off", Severity.ERROR, message, hint)
    return manifest.model_copy(update={"findings": [*manifest.findings, found]})


def analyze_run(
    run_dir: Path,
    manifest: RunManifest,
    read_as: ReadAs = AS_LAUNCHED,
    *,
    write: bool = True,
    visit: OnAnalysis | None = None,
    visit_profiling: OnAnalysis | None = None,
) -> RunSummary:
    """Compute the results of a run and write them. Existing files stay if no trace or batch is left.

    Args:
        write: whether to write files; if not, the mean has no `mean_all_batches`.
        visit: called with the analysis of each process.
        visit_profiling: called with the analysis of each process of the profiling pass.
    """
    options = read_as.options(manifest)
    profiling, findings = _analyze_profiling_pass(run_dir, manifest, read_as, visit_profiling, write=write)
    ranks = _rank_comparison(manifest, options)
    analyzer = ProcessAnalyzer(run_dir, manifest, options, profiling, ranks, visit)
    analysed: dict[str, TraceResult] = {}
    for process in in_steps(manifest.measured_processes, lambda one: f"reading {one.folder}"):
        one, found = analyzer.analyze(process)
        findings += found
        if one is not None:
            analysed[process.folder] = one
    results = {folder: one.result for folder, one in analysed.items()}
    helpers = _helpers(manifest, results)
    findings = [one for one in findings if one.code != "no-batches" or one.process not in helpers]
    compared, sharing = None if ranks is None else ranks.compare(), ALL_SEPARATE
    if compared is not None:
        from perfharness.runs.ranks import sharing_of, with_ranks

        results, found = with_ranks(results, compared, manifest)
        findings += found
        sharing = sharing_of(compared)
    nsys_bytes = {folder: one.trace_bytes for folder, one in analysed.items() if one.trace_meta.tracer == "nsys"}
    machine = analyzer.telemetry.summarize(results, nsys_bytes)
    findings += machine.findings
    warmup = options.warmup_batches
    results = {
        one.folder: replace(result, meta=process_meta(manifest, one, result, analysed[one.folder], warmup, findings))
        for one in manifest.measured_processes
        if (result := results.get(one.folder)) is not None
    }
    pooled = with_children_apart(
        results, {one.folder: one.launched_folder for one in manifest.measured_processes if one.rank is None}
    )
    included, found = _included(manifest, pooled)
    findings += found
    failed = _failed(manifest, results)
    combined = combine(included, with_data=write, failed=failed, sharing=sharing, helpers=helpers)
    findings += names_findings(combined)
    diagnoses = {name: result.diagnosis for name, result in included.items() if result.diagnosis is not None}
    diagnosis = rounded(asdict(RunDiagnosis(agreement(diagnoses))))
    mean = {
        **combined,
        **({"diagnosis": {"unit": "milliseconds", **diagnosis}} if diagnoses else {}),
        **({} if compared is None else {"ranks": compared.to_json()}),
        **machine.mean,
        "meta": mean_meta(manifest, included, warmup, findings),
    }
    not_written = None
    loops = [loop for result in results.values() for loop in result.loops]
    is_nothing = all(loop.warmup.all() for loop in loops) if loops else not results
    if write and not (is_nothing and has_numbers(run_dir)):
        of_processes = _process_files(manifest, results, analysed, machine)
        not_written = _write(run_dir, chain(of_processes, [(BENCHMARK_MEAN_NAME, mean)]))
    evidence = {folder: one.evidence for folder, one in analysed.items() if one.evidence is not None}
    return RunSummary(run_dir, mean, pooled, findings, not_written, failed, sharing, helpers, evidence)


def _analyze_profiling_pass(
    run_dir: Path, measured: RunManifest, read_as: ReadAs, visit: OnAnalysis | None, *, write: bool
) -> tuple[dict[str, PassEvidence], list[Finding]]:
    """Evidence of the profiling pass by process, and findings of the launcher and about the pass."""
    folder = explaining_folder(run_dir, measured)
    if folder is None:
        return {}, [*measured.findings, *explaining_pass_missing(run_dir, measured)]
    findings = [one for one in measured.findings if one.code != FAILED]  # checked again
    try:
        manifest = read_manifest(folder)
        with alone_in(folder) if write else contextlib.nullcontext():
            evidence = analyze_run(folder, manifest, read_as, write=write, visit=visit).evidence
    except ResultError as error:
        return {}, [*findings, explaining_pass_failed(str(error))]
    usable_names = usable_processes(measured, manifest)
    usable = {name: found for name, found in evidence.items() if name in usable_names}
    return usable, [*findings, *explaining_findings(measured, manifest, usable)]


def _rank_comparison(manifest: RunManifest, options: AnalysisOptions) -> RankComparison | None:
    """Compare ranks of the measured pass, if any. The profiling pass would slow them down unevenly."""
    if manifest.explaining or all(one.rank is None for one in manifest.measured_processes):
        return None
    from perfharness.runs.ranks import RankComparison  # rarely needed

    return RankComparison(manifest, None if options.parallel == "auto" else options.parallel)


def _helpers(manifest: RunManifest, results: Mapping[str, ProcessResult]) -> frozenset[str]:
    """Processes without batches in a tree that has some, such as DataLoader workers; never ranks."""
    processes = [one for one in manifest.measured_processes if one.folder in results]
    busy = {one.launched_folder for one in processes if results[one.folder].loops}
    return frozenset(
        one.folder
        for one in processes
        if one.launched_folder in busy and one.rank is None and not results[one.folder].loops
    )


def _included(
    manifest: RunManifest, results: dict[str, ProcessResult]
) -> tuple[dict[str, ProcessResult], list[Finding]]:
    """Results for the mean: those of successful processes, or all if none succeeded."""
    well = {process.folder for process in manifest.measured_processes if process.ended == "ok"}
    included = {folder: result for folder, result in results.items() if folder in well}
    excluded = sorted(set(results) - set(included))
    if not excluded:
        return included, []
    if included:
        message = f"The mean excludes {', '.join(excluded)}: not ended well, so traces may be incomplete."
        return included, [Finding("processes-failed", Severity.WARNING, message)]
    message = "No process ended well: means cover only the batches before the failure."
    return results, [Finding("processes-failed", Severity.ERROR, message)]


def _failed(manifest: RunManifest, results: Mapping[str, ProcessResult]) -> dict[str, str]:
    """Reasons why processes are missing or incomplete in the results."""
    failed = {f"node {rank}": "left no results" for rank in manifest.missing_nodes}
    failed |= {
        process.folder: "left no readable trace"
        for process in manifest.measured_processes
        if process.folder not in results
    }
    some_ended_well = any(process.ended == "ok" for process in manifest.processes)
    for process in manifest.processes:
        if process.ended == "failed":
            failed[process.folder] = f"failed ({process.signal or f'exit code {process.exit_code}'})"
        elif some_ended_well and process.ended != "ok":
            failed[process.folder] = f"did not end by itself ({process.ended.replace('_', ' ')})"
    return failed


def benchmark_tree(result: ProcessResult) -> Tree:
    """Content of benchmark.json."""
    diagnosis = {} if result.diagnosis is None else {"diagnosis": result.diagnosis.to_json()}
    return {
        "data": entry_table(result.entries),
        "mean_data": result.mean_data,
        "stats_minus_warmup": result.stats_minus_warmup,
        "outside_batches": outside_tree([result]),
        **diagnosis,
        "meta": result.meta,
    }


def _process_files(
    manifest: RunManifest,
    results: Mapping[str, ProcessResult],
    analysed: Mapping[str, TraceResult],
    machine: MachineSide,
) -> Iterator[tuple[str, Tree | None]]:
    """Names and contents of benchmark.json files; None for a process without a trace."""
    for process in manifest.measured_processes:
        body = None
        if (result := results.get(process.folder)) is not None:
            body = {**benchmark_tree(result), **machine.processes.get(process.folder, {})}
            if not manifest.capture_batches:  # otherwise the first CUDA call is unknown
                body |= _startup(manifest, process, result, analysed[process.folder].journal)
        yield f"{process.folder}/{BENCHMARK_NAME}", body


def _startup(
    manifest: RunManifest, process: ProcessRecord, result: ProcessResult, journal: RecorderJournal | None
) -> Tree:
    if process.start_unix_ns is None or process.folder != process.launched_folder:
        return {}
    found = startup(
        process.start_unix_ns,
        journal,
        result.loops,
        result.first_cuda,
        clock_is_utc=result.clock_is_utc,
        container_start_unix_ns=manifest.machine_of(process).container_start_unix_ns,
    )
    return {"startup": found.to_json()}


def _write(run_dir: Path, files: Iterable[tuple[str, Tree | None]]) -> str | None:
    """Write result files by name, or remove them (None); return the problem, if any."""
    try:
        for name, body in files:
            path, written = run_dir / name, []
            if body is None:
                path.unlink(missing_ok=True)
            else:
                written = write_json(path, body)
            if path.with_name(RANGES_NAME) not in written:
                path.with_name(RANGES_NAME).unlink(missing_ok=True)
    except (OSError, ResultError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = reason_of(cause) if isinstance(cause, OSError) else str(error)
        return f"the results could not be written to {run_dir} ({reason})"
    return None


def analyze_trace(
    path: Path,
    options: AnalysisOptions,
    *,
    with_diagnosis: bool = True,
    visit: Callable[[Analysis], None] | None = None,
) -> TraceResult:
    """Analyse a trace file with all its processes; a diagnosis doubles the time. Raises `TraceError`."""
    source = bare_trace(path)
    analysis = source.analysis(options, with_details=with_diagnosis)
    evidence = find_evidence(Pass(analysis)) if with_diagnosis else None
    result = result_of(analysis, source.journals, evidence)
    if visit is not None:
        visit(analysis)
    return TraceResult(result, analysis.trace.meta, evidence, source.journals.own, path.stat().st_size)
