"""A run folder, from the traces in it to benchmark.json per process and benchmark_mean.json.

Needs no GPU, CUDA, nsys or torch: everything is recomputed from what is on disk.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import (
    CpuSupply,
    OtherProcesses,
    Pass,
    PassEvidence,
    RunDiagnosis,
    agreement,
    diagnose,
    find_evidence,
)
from perfharness.analysis.energy.work import gpu_work
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.metrics.clocks import Throttling
from perfharness.analysis.stages.checks import with_checks
from perfharness.analysis.stages.children import with_children_apart
from perfharness.analysis.stages.entries import entry_table
from perfharness.analysis.stages.startup import first_cuda, startup
from perfharness.analysis.stages.throughput import ALL_SEPARATE, Sharing
from perfharness.analysis.stages.tree import combine, outside_tree, tabulate
from perfharness.analysis.stages.warmup import drift_findings
from perfharness.analysis.timeline.clock import clock_findings
from perfharness.errors import ResultError, TraceError, UsageError
from perfharness.files import is_plain, is_plain_folder, locked, read_regular, reason_of
from perfharness.model.environment import LOGGING_TRACERS
from perfharness.model.findings import Finding, Severity, without_consequences
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, RunManifest, is_part_of
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, ProcessResult, Tree
from perfharness.model.rounding import rounded
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import Trace, TraceMeta
from perfharness.runs.clocks import machine_clock, on_utc
from perfharness.runs.explain import (
    FAILED,
    diagnosis_findings,
    explaining_findings,
    explaining_folder,
    explaining_pass_failed,
    explaining_pass_missing,
    usable_processes,
)
from perfharness.runs.files.helpers import Helpers
from perfharness.runs.files.journals import Journals, host_probe_of, journals_of
from perfharness.runs.files.meta import mean_meta, process_meta
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.runs.files.result_files import ResultFiles, size_of
from perfharness.runs.gpu_sharing import GpuSharing
from perfharness.runs.telemetry import RunTelemetry
from perfharness.trace import open_trace
from perfharness.trace.host_samples import RecordedProbe
from perfharness_launcher.children import with_measured
from perfharness_launcher.staging import has_numbers

if TYPE_CHECKING:
    from perfharness.analysis.ranks.results import RunRanks
    from perfharness.runs.ranks import RankComparison


@dataclass(frozen=True)
class ReadAs:
    """How runs and traces are read; None: as launched, and of a bare trace without warm-up."""

    warmup_batches: int | None = None
    domain: str | None = None
    batch_pattern: str | None = None
    parallel: Literal["auto", "data", "model"] | None = None

    def options(self, launched: RunManifest | None = None) -> AnalysisOptions:
        """With those of the launch where none is given. Raises `UsageError`."""
        if self.warmup_batches is not None and self.warmup_batches < 0:
            raise UsageError(f"warmup_batches is {self.warmup_batches}; give 0 or more.")
        names = [field.name for field in fields(self)]
        values = {} if launched is None else {name: getattr(launched, name) for name in names}
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, "")}
        return AnalysisOptions(**{**values, **given})


AS_LAUNCHED = ReadAs()


@dataclass(frozen=True)
class RunSummary:
    """The results of a run: the mean tree, those of each process, and all findings."""

    folder: Path
    mean: Tree
    results: dict[str, ProcessResult]
    findings: list[Finding]
    not_written: str | None = None
    """Why the files could not be written, in a sentence; None where they were."""

    failed: Mapping[str, str] = field(default_factory=dict)
    sharing: Sharing = ALL_SEPARATE
    helpers: frozenset[str] = frozenset()
    """What the mean was made with, as of `combine`."""

    evidence: Mapping[str, PassEvidence] = field(default_factory=dict)
    """What the diagnosis of each process rests on."""

    def mean_of(self, process: str) -> Tree:
        """The mean of a part of the run: of one process, or of a launched one with all that it started. Empty where
        nothing of it was measured.
        """
        results = {name: result for name, result in self.results.items() if is_part_of(process, name)}
        if not results:
            return {}
        failed = {
            name: how for name, how in self.failed.items() if is_part_of(process, name) or is_part_of(name, process)
        }
        sharing = self.sharing if len(results) > 1 else ALL_SEPARATE  # alone it has its items for itself
        mean = combine(results, with_data=False, failed=failed, sharing=sharing, helpers=self.helpers)
        return {**mean, "meta": self.mean["meta"]}


@dataclass(frozen=True)
class Analysed:
    """What the trace of a process comes to."""

    result: ProcessResult
    trace_meta: TraceMeta
    journals: Journals
    evidence: PassEvidence | None
    trace_bytes: int


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """The run folder, in which no other command writes meanwhile. Raises `ResultError` where one does."""
    try:
        with locked(folder):
            yield
    except BlockingIOError as error:
        raise ResultError(f"another perfharness is writing to {folder}; wait until it is done") from error


def read_manifest(folder: Path) -> RunManifest:
    """The run's manifest.

    Of a run whose launcher was killed, it lists the traces that exist and marks the run as cut off.

    Raises `ResultError` where the folder holds none, or it cannot be read.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = RunManifest.model_validate_json(read_regular(path, follow=False))
    except FileNotFoundError:
        raise ResultError(
            f"{folder} holds no {MANIFEST_NAME}, so it is not a run folder; give the folder that was passed to "
            "`perfharness launch -o`, or a trace (.sqlite or .nsys-rep)."
        ) from None
    except (OSError, ValidationError) as error:
        raise ResultError(
            f"{path} cannot be read ({_why(error)}); it was written by another program, or is damaged."
        ) from error
    manifest = _with_imported_logs(folder, manifest)
    return manifest if manifest.complete else _cut_off(folder, manifest)


def _why(error: OSError | ValidationError) -> str:
    """In a line: of a field its name and what is wrong with it."""
    if isinstance(error, OSError):
        return reason_of(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)


def _with_imported_logs(folder: Path, manifest: RunManifest) -> RunManifest:
    """The manifest with the traces of range logs that the launch could not turn into traces: it was killed, or the disk
    was full.
    """
    if manifest.tracer.kind not in LOGGING_TRACERS:
        return manifest
    from perfharness.tracer.output import complete_traces, log_paths  # here, for other runs need no tracer

    imported = set()
    for record in manifest.processes:
        process = folder / record.folder
        if not is_plain_folder(process):
            continue
        if log_paths(process):
            with contextlib.suppress(OSError, sqlite3.Error):  # a folder that cannot be written to is read as it is
                complete_traces(process, record.pid, of_running=False)
                imported.add(record.folder)
        if record.trace is None and is_plain(process / TRACE_NAME):
            imported.add(record.folder)
    if not imported:
        return manifest
    records = [
        _with_traces(folder, record, manifest) if record.folder in imported else record for record in manifest.processes
    ]
    findings = [
        finding
        for finding in manifest.findings
        if not (finding.process in imported and finding.code in ("trace-missing", "trace-import-failed"))
    ]
    return manifest.model_copy(update={"processes": records, "findings": findings})


def _cut_off(folder: Path, manifest: RunManifest) -> RunManifest:
    """The manifest of a run whose launcher was killed, with the traces that exist."""
    records = [_with_traces(folder, record, manifest) for record in manifest.processes]
    found = Finding(
        code="run-cut-off",
        severity=Severity.ERROR,
        message="The launcher was killed, so how the processes ended is not known and traces may lack their end.",
    )
    return manifest.model_copy(update={"processes": records, "findings": [*manifest.findings, found]})


def _with_traces(folder: Path, record: ProcessRecord, manifest: RunManifest) -> ProcessRecord:
    """The record of a launched process with the traces that its processes left, each in its folder."""
    trace = TRACE_NAME if is_plain(folder / record.folder / TRACE_NAME) else None
    record = record.model_copy(update={"trace": trace})
    if record.pid is None or not is_plain_folder(folder / record.folder):
        return record
    with contextlib.suppress(OSError):  # a folder that cannot be written to is read as it is
        return with_measured(folder, record, share_trace=manifest.tracer.kind == "nsys")
    return record


Visit = Callable[[str, Analysis], None]
"""Sees the analysis of a process, by its folder, before it is released."""


def analyze_run(
    run_dir: Path,
    manifest: RunManifest,
    read_as: ReadAs = AS_LAUNCHED,
    *,
    write: bool = True,
    visit: Visit | None = None,
) -> RunSummary:
    """Recompute both kinds of JSON files of a run.

    Processes without a readable trace get no benchmark.json; the others' are written nevertheless. Where nothing can be
    read, results that are there stay.

    Args:
        write: False: only read. The files stay as they are, and the mean has no `mean_all_batches`.
        visit: sees each process of the measured pass.
    """
    findings = manifest.findings + explaining_pass_missing(run_dir, manifest)
    explaining: dict[str, PassEvidence] = {}
    if (explaining_dir := explaining_folder(run_dir, manifest)) is not None:
        findings = [finding for finding in findings if finding.code != FAILED]  # of one that was run again since
        explaining, problems = _analyze_explaining(explaining_dir, manifest, read_as, write=write)
        findings += problems
    all_analysed: dict[str, Analysed] = {}
    analyzer = ProcessAnalyzer(run_dir, manifest, read_as, visit, explaining)
    for process in manifest.measured_processes:
        analysed, problems = analyzer.analyze(process)
        findings.extend(problems)
        if analysed is not None:
            all_analysed[process.folder] = analysed
    results = {folder: analysed.result for folder, analysed in all_analysed.items()}
    helpers = analyzer.helpers_of(results)
    ranks, sharing = analyzer.compare_ranks(), ALL_SEPARATE
    if ranks is not None:
        from perfharness.runs.ranks import sharing_of, with_ranks

        results, found = with_ranks(results, ranks)
        findings.extend(found)
        sharing = sharing_of(ranks)
    options = analyzer.options
    nsys_bytes = {name: one.trace_bytes for name, one in all_analysed.items() if one.trace_meta.tracer == "nsys"}
    machine = analyzer.telemetry.summarize(results, nsys_bytes)
    findings.extend(machine.findings)
    files = ResultFiles(run_dir) if write and (results or not has_numbers(run_dir)) else None
    for process in manifest.measured_processes:
        if (analysed := all_analysed.get(process.folder)) is None:
            if files is not None:
                files.remove(f"{process.folder}/{BENCHMARK_NAME}")
            continue
        own = [finding for finding in findings if finding.process == process.folder]
        meta = process_meta(
            manifest, process, analysed.result, analysed.trace_meta, analysed.journals.main, options.warmup_batches, own
        )
        meta["sources"]["trace_bytes"] = analysed.trace_bytes
        results[process.folder] = replace(results[process.folder], meta=meta)
        if files is not None:
            body = {
                **benchmark_tree(results[process.folder]),
                **machine.process_tree(process.folder),
                **({} if manifest.capture_batches else _startup(process, analysed)),  # its first CUDA call is not known
            }
            files.write(f"{process.folder}/{BENCHMARK_NAME}", body)
    results = with_children_apart(results, {one.folder: one.launched_folder for one in manifest.measured_processes})
    included, partial = _included(manifest, results)
    findings.extend(partial)
    failed = {**_without_trace(manifest, all_analysed), **_failed(manifest)}
    mean = {
        **combine(included, with_data=write, failed=failed, sharing=sharing, helpers=helpers),
        **_pooled_diagnosis(included),
        **({} if ranks is None else {"ranks": ranks.to_json()}),
        **machine.mean_tree(),
        "meta": mean_meta(manifest, included, options.warmup_batches, findings),
    }
    evidence = {name: one.evidence for name, one in all_analysed.items() if one.evidence is not None}
    summary = RunSummary(
        run_dir, mean, results, findings, failed=failed, sharing=sharing, helpers=helpers, evidence=evidence
    )
    if files is None:
        return summary
    files.write(BENCHMARK_MEAN_NAME, mean)
    return replace(summary, not_written=files.problem)


def _analyze_explaining(
    folder: Path, measured: RunManifest, read_as: ReadAs, *, write: bool
) -> tuple[dict[str, PassEvidence], list[Finding]]:
    """Analyse the profiling pass of a run: what it adds to each process, and what of it is missing."""
    try:
        manifest = read_manifest(folder)
        with alone_in(folder) if write else contextlib.nullcontext():
            found = analyze_run(folder, manifest, read_as, write=write).evidence
    except ResultError as error:
        return {}, [explaining_pass_failed(str(error))]
    passes = {name: found[name] for name in usable_processes(measured, manifest) if name in found}
    return passes, explaining_findings(measured, manifest, passes)


def benchmark_tree(result: ProcessResult) -> Tree:
    """The body of benchmark.json."""
    diagnosis = {} if result.diagnosis is None else {"diagnosis": result.diagnosis.to_json()}
    return {
        "data": entry_table(result.entries),
        "mean_data": result.mean_data,
        "stats_minus_warmup": result.stats_minus_warmup,
        "outside_batches": outside_tree([result]),
        **diagnosis,
        "meta": result.meta,
    }


def _startup(process: ProcessRecord, analysed: Analysed) -> Tree:
    if process.start_unix_ns is None or process.folder != process.launched_folder:
        return {}
    result = analysed.result
    found = startup(
        process.start_unix_ns, analysed.journals.main, result.loops, result.first_cuda, clock_is_utc=result.clock_is_utc
    )
    return {"startup": found.to_json()}


def _pooled_diagnosis(results: dict[str, ProcessResult]) -> Tree:
    diagnoses = {name: result.diagnosis for name, result in results.items() if result.diagnosis is not None}
    if not diagnoses:
        return {}
    found = RunDiagnosis(agreement(diagnoses))
    return {"diagnosis": {"unit": "milliseconds", **rounded(asdict(found))}}


NOT_EXPLAINED: Mapping[str, PassEvidence] = MappingProxyType({})


class ProcessAnalyzer:
    """Analyses the processes of a run, one at a time; what they share is read once. Raises `UsageError`.

    Attributes:
        options: how their traces are read.
    """

    def __init__(
        self,
        run_dir: Path,
        manifest: RunManifest,
        read_as: ReadAs,
        visit: Visit | None = None,
        explaining: Mapping[str, PassEvidence] = NOT_EXPLAINED,
    ) -> None:
        self.options = read_as.options(manifest)
        self._explaining = explaining
        self._visit = visit
        self._ranks = self._rank_comparison(manifest)
        self.telemetry = RunTelemetry(run_dir, manifest)
        self._manifest = manifest
        self._traces = ProcessTraces(run_dir)
        self._helpers = Helpers(self._traces, manifest, self.options)
        self._sharing = GpuSharing(self._traces, manifest)

    def _rank_comparison(self, manifest: RunManifest) -> RankComparison | None:
        if all(one.measured_self is None or one.measured_self.rank is None for one in manifest.measured_processes):
            return None
        from perfharness.runs.ranks import RankComparison  # here, for most runs have no ranks

        return RankComparison(manifest, None if self.options.parallel == "auto" else self.options.parallel)

    def analyze(self, process: ProcessRecord) -> tuple[Analysed | None, list[Finding]]:
        """What a process left, and what was found; None where it left no trace that can be read."""
        traces, telemetry = self._traces, self.telemetry
        path = process.trace_path(traces.run_dir)
        if path is None:
            return None, _no_trace(self._manifest, process)
        journals, host_probe = traces.journals(process), traces.host_probe(process)
        try:
            others = self._sharing.others_of(process)
            opened = analyze_opened(
                traces.open(process),
                self.options,
                journals,
                evidence_of=partial(self._evidence, process, others),
                profiling=self._explaining.get(process.folder),
                host_probe=host_probe,
                machine=machine_clock(self._manifest),
                throttling=telemetry.throttling(process),
                gpu_work_on=None if telemetry.log is None else process.used_gpus,
                visit=partial(self._see, process),
            )
        except TraceError as error:
            unreadable = Finding("trace-unreadable", Severity.ERROR, str(error), process=process.folder)
            return None, [unreadable]
        result = opened.result
        self._helpers.note(process, runs_batches=bool(result.loops))
        own = without_consequences(result.findings, ended_well=process.ended == "ok")
        own = [*self._helpers.expected(process, own), *not_sampled(host_probe)]
        if result.diagnosis is not None and process.folder in self._explaining:
            own += diagnosis_findings(result.diagnosis)
        findings = [replace(finding, process=process.folder) for finding in own]
        return Analysed(result, opened.trace_meta, journals, opened.evidence, size_of(path)), findings

    def helpers_of(self, results: Collection[str]) -> frozenset[str]:
        """Of the processes that were analysed, by their folders, those that work for others."""
        processes = (one for one in self._manifest.measured_processes if one.folder in results)
        return frozenset(one.folder for one in processes if self._helpers.is_helper(one))

    def _evidence(
        self, process: ProcessRecord, others: Callable[[Trace], OtherProcesses], analysis: Analysis
    ) -> PassEvidence:
        quota, meta = self.telemetry.cpu_quota(process), analysis.trace.meta
        if quota is not None:
            start = meta.session_start_unix_ns
            quota = None if start is None else quota.moved(-start)
        return find_evidence(Pass(analysis, others(analysis.trace), self._supply(process), quota))

    def _supply(self, process: ProcessRecord) -> CpuSupply:
        """The CPUs of a process, and the launched processes that were given the same ones."""
        every = {one.folder: one for one in self._manifest.processes}
        launched = every.get(process.launched_folder)
        if launched is None:
            return CpuSupply()
        mine = [one for one in every.values() if _cpus(one) == _cpus(launched)]
        threads = [one.runnable_threads for one in mine if one.runnable_threads is not None]
        return CpuSupply(launched.cpus_allowed, len(mine), sum(threads) if len(threads) == len(mine) else None)

    def _see(self, process: ProcessRecord, analysis: Analysis) -> None:
        if self._ranks is not None:
            self._ranks.visit(process, analysis)
        if self._visit is not None:
            self._visit(process.folder, analysis)

    def compare_ranks(self) -> RunRanks | None:
        """The ranks of the run side by side, those too that were not analysed; None where there are not two."""
        if self._ranks is None or self._manifest.explaining:
            return None  # what the measured pass shows counts: this one slows ranks down unevenly
        for process in self._ranks.unseen():
            with contextlib.suppress(TraceError):
                trace = on_utc(self._traces.open(process), machine_clock(self._manifest))
                self._ranks.visit(process, Analysis(trace, self.options))
        return self._ranks.compare()


def not_sampled(recorded: RecordedProbe | None) -> list[Finding]:
    """Why a process has no samples; none where it has some, or was not to have any."""
    if recorded is None or len(recorded.probe.samples) or not recorded.probe.missing:
        return []
    message = f"No Python stacks were sampled, so functions and lines are not named: {recorded.probe.missing[0]}"
    return [Finding("not-sampled", Severity.NOTE, message)]


def _cpus(process: ProcessRecord) -> str | None:
    return None if process.placement is None else process.placement.cpus


@dataclass(frozen=True)
class Opened:
    """The result of a trace; `evidence`: what its diagnosis rests on, None where it was not asked for."""

    result: ProcessResult
    trace_meta: TraceMeta
    evidence: PassEvidence | None


def analyze_trace(
    path: Path,
    options: AnalysisOptions,
    *,
    with_diagnosis: bool = True,
    visit: Callable[[Analysis], None] | None = None,
) -> Opened:
    """The result of one trace file, all of its processes together.

    Args:
        with_diagnosis: diagnose it, which takes time of its own.
        visit: sees the analysis before it is released.
    """
    journals = journals_of(path)
    trace = open_trace(path, parents=journals.parents, with_details=with_diagnosis)
    return analyze_opened(
        trace,
        options,
        journals,
        evidence_of=(lambda analysis: find_evidence(Pass(analysis))) if with_diagnosis else None,
        host_probe=host_probe_of(path) if with_diagnosis else None,
        visit=visit,
    )


def analyze_opened(
    trace: Trace,
    options: AnalysisOptions,
    journals: Journals,
    *,
    evidence_of: Callable[[Analysis], PassEvidence] | None,
    profiling: PassEvidence | None = None,
    host_probe: RecordedProbe | None = None,
    machine: ClockTieRecord | None = None,
    throttling: Throttling | None = None,
    gpu_work_on: Sequence[str] | None = None,
    visit: Callable[[Analysis], None] | None = None,
) -> Opened:
    """The result of one trace, checked against the recorders' counts where these exist.

    Args:
        trace, options: the trace and how to read it.
        journals: what the recorders counted.
        evidence_of: what the diagnosis rests on; None: leave it out, which takes time of its own.
        profiling: what the profiling pass of the process shows; None: there is none.
        host_probe: what was sampled of the process.
        machine: UTC against the monotonic clock, as sampled during the run.
        throttling: when the clocks of the process's GPU were throttled; None: not known.
        gpu_work_on: UUIDs of the process's GPUs: when each of them worked is listed, for telemetry; None: it is not.
        visit: sees the analysis before it is released.
    """
    trace = on_utc(trace, machine)
    analysis = Analysis(trace, options, None if host_probe is None else on_trace_clock(host_probe, trace))
    evidence = None if evidence_of is None else evidence_of(analysis)  # first: it takes the most memory
    result = tabulate(analysis, throttling)
    checked = with_checks(result.findings, journals.findings(trace))
    result = replace(
        result,
        findings=[*checked, *drift_findings(analysis), *clock_findings(trace.meta.clock)],
        first_cuda=first_cuda(trace),
        diagnosis=None if evidence is None else diagnose(evidence, profiling),
        gpu_work=() if gpu_work_on is None else gpu_work(analysis, gpu_work_on),
    )
    if visit is not None:
        visit(analysis)
    return Opened(result, trace.meta, evidence)


def _no_trace(manifest: RunManifest, process: ProcessRecord) -> list[Finding]:
    is_explained = any(
        finding.process in (process.folder, process.launched_folder) and finding.severity == Severity.ERROR
        for finding in manifest.findings
    )
    if process.ended == "cut_off":
        message = "The process left no trace, or one that was not exported before the launcher was killed."
        return [Finding("trace-missing", Severity.ERROR, message, process=process.folder)]
    if is_explained or process.ended != "ok":
        return []
    if manifest.tracer.kind == "none":
        why = "the run was not traced (--tracer none)"
        return [Finding("not-traced", Severity.WARNING, f"There are no times: {why}.", process=process.folder)]
    return [
        Finding(
            "trace-missing",
            Severity.ERROR,
            "The process ended well and left no trace.",
            "See its stderr.log, and `perfharness doctor`.",
            process.folder,
        )
    ]


def _without_trace(manifest: RunManifest, analysed: Container[str]) -> dict[str, str]:
    """Processes whose part of the run is not known."""
    lost = [process.folder for process in manifest.measured_processes if process.folder not in analysed]
    return dict.fromkeys(lost, "it left no trace that can be read")


def _failed(manifest: RunManifest) -> dict[str, str]:
    """How processes failed; those too that did not end by themselves, where others did."""
    some_ended_well = any(process.ended == "ok" for process in manifest.processes)
    return {
        process.folder: f"the process failed ({process.signal or f'exit code {process.exit_code}'})"
        if process.ended == "failed"
        else f"the process did not end by itself ({process.ended.replace('_', ' ')})"
        for process in manifest.processes
        if process.ended == "failed" or (some_ended_well and process.ended != "ok")
    }


def _included(
    manifest: RunManifest, results: dict[str, ProcessResult]
) -> tuple[dict[str, ProcessResult], list[Finding]]:
    """Results that the mean is made of: those of processes that ended well, or, where none did, all there are."""
    well = {process.folder for process in manifest.measured_processes if process.ended == "ok"}
    included = {folder: result for folder, result in results.items() if folder in well}
    excluded = sorted(set(results) - set(included))
    if not excluded:
        return included, []
    if included:
        message = (
            f"The mean leaves out {', '.join(excluded)}: the process did not end well, so its trace may be cut short."
        )
        return included, [Finding("mean-without-failed", Severity.WARNING, message)]
    message = "No process ended well; the mean is made of what their traces hold up to the end."
    return results, [Finding("mean-of-failed", Severity.ERROR, message)]
