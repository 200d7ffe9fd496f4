"""Compute the result of a measured process, or of a bare trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import (
    CpuSupply,
    Pass,
    PassEvidence,
    diagnose,
    diagnosis_findings,
    find_evidence,
)
from perfharness.analysis.energy.work import gpu_work
from perfharness.analysis.metrics.clocks import Throttling
from perfharness.analysis.stages.checks import with_checks
from perfharness.analysis.stages.startup import first_cuda
from perfharness.analysis.stages.tree import tabulate
from perfharness.analysis.stages.warmup import judge_loops, warmup_findings
from perfharness.analysis.timeline.clock import clock_findings
from perfharness.errors import TraceError
from perfharness.model.findings import Finding, Severity, without_consequences
from perfharness.model.journal import RecorderJournal
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.model.result import ProcessResult
from perfharness.model.trace import TraceMeta
from perfharness.runs.files.process_traces import Journals, traces_of
from perfharness.runs.gpu_sharing import GpuSharing
from perfharness.runs.telemetry import RunTelemetry

if TYPE_CHECKING:
    from perfharness.runs.ranks import RankComparison

OnAnalysis = Callable[[str, Analysis], None]
"""Called with the folder and analysis of each process while its trace is loaded."""


@dataclass(frozen=True)
class TraceResult:
    """Result of a trace; `evidence` is the basis of its diagnosis, or None without a diagnosis."""

    result: ProcessResult
    trace_meta: TraceMeta
    evidence: PassEvidence | None
    journal: RecorderJournal | None
    trace_bytes: int


def result_of(
    analysis: Analysis,
    journals: Journals,
    evidence: PassEvidence | None,
    *,
    profiling: PassEvidence | None = None,
    throttling: Throttling | None = None,
    gpu_uuids: Sequence[str] | None = None,
) -> ProcessResult:
    """Compute the result of a trace, and check it against its journals.

    Args:
        evidence: evidence of this pass, or None for no diagnosis.
        gpu_uuids: GPUs whose busy times telemetry needs.
    """
    result = tabulate(analysis, throttling)
    findings = with_checks(result.findings, journals.findings(analysis.trace))
    findings += warmup_findings(judge_loops(analysis))
    findings += clock_findings(analysis.trace.meta.clock)
    diagnosis = None if evidence is None else diagnose(evidence, profiling)
    if evidence is not None and diagnosis is not None:
        findings += diagnosis_findings(diagnosis, evidence.others_reason)
    return replace(
        result,
        findings=findings,
        first_cuda=first_cuda(analysis.trace),
        diagnosis=diagnosis,
        gpu_work=() if gpu_uuids is None else gpu_work(analysis, gpu_uuids),
    )


@dataclass
class ProcessAnalyzer:
    """Analyse the processes of a run one at a time."""

    run_dir: Path
    manifest: RunManifest
    options: AnalysisOptions
    profiling: Mapping[str, PassEvidence]
    ranks: RankComparison | None
    visit: OnAnalysis | None

    def __post_init__(self) -> None:
        self.telemetry = RunTelemetry(self.run_dir, self.manifest)
        self._traces = traces_of(self.run_dir, self.manifest)
        self._sharing = GpuSharing(self._traces, self.manifest)

    def analyze(self, process: ProcessRecord) -> tuple[TraceResult | None, list[Finding]]:
        """Result of a process (None without a readable trace), and findings."""
        source = self._traces[process.folder]
        if source.path is None:
            return None, _no_trace(self.manifest, process)
        try:
            work_of_others = self._sharing.work_of_others(process)
            analysis = source.analysis(self.options)
        except TraceError as error:
            return None, [Finding("trace-unreadable", Severity.ERROR, str(error), process=process.folder)]
        others = self._sharing.others(process, analysis.trace, work_of_others)
        quota, start = self.telemetry.cpu_quota(process), analysis.trace.meta.session_start_unix_ns
        on_trace_clock = None if quota is None or start is None else quota.moved(-start)
        measured_pass = Pass(analysis, others, self._cpu_supply(process), on_trace_clock)
        evidence = find_evidence(measured_pass)  # first, because it needs most memory
        result = result_of(
            analysis,
            source.journals,
            evidence,
            profiling=self.profiling.get(process.folder),
            throttling=self.telemetry.throttling(process),
            gpu_uuids=None if self.telemetry.log is None else process.used_gpus,
        )
        if self.ranks is not None:
            self.ranks.visit(process, analysis)
        if self.visit is not None:
            self.visit(process.folder, analysis)
        findings = without_consequences(result.findings, ended_well=process.ended == "ok")
        if (probe := analysis.host_probe) is not None and not len(probe.samples) and probe.missing:
            message = f"Python stacks were not sampled, so functions and lines are unknown: {probe.missing[0]}"
            findings.append(Finding("no-stacks", Severity.NOTE, message))
        one = TraceResult(result, analysis.trace.meta, evidence, source.journals.own, source.path.stat().st_size)
        return one, [replace(finding, process=process.folder) for finding in findings]

    def _cpu_supply(self, process: ProcessRecord) -> CpuSupply:
        """CPUs of a process, and number of launched processes on the same CPUs."""
        launched = next(one for one in self.manifest.processes if one.folder == process.launched_folder)
        on_node = [one for one in self.manifest.processes if one.node == launched.node]
        placed = {one.folder: one.placement and one.placement.cpus for one in on_node}
        same = [one for one in on_node if placed[one.folder] == placed[launched.folder]]
        threads = [one.runnable_threads for one in same if one.runnable_threads is not None]
        return CpuSupply(launched.cpus_allowed, len(same), sum(threads) if len(threads) == len(same) else None)


def _no_trace(manifest: RunManifest, process: ProcessRecord) -> list[Finding]:
    """Report why a process has no trace, unless the launcher did."""
    if process.ended == "cut_off":
        message = "The process left no trace, or the launcher was killed before it was exported."
        return [Finding("trace-missing", Severity.ERROR, message, process=process.folder)]
    is_explained = any(
        finding.process in (process.folder, process.launched_folder) and finding.severity == Severity.ERROR
        for finding in manifest.findings
    )
    if is_explained or process.ended != "ok":
        return []
    if manifest.tracer.kind == "none":
        message = "The run has no times, because it was not traced (--tracer none)."
        return [Finding("not-traced", Severity.WARNING, message, process=process.folder)]
    message, hint = "The process ended well but left no trace.", "See its stderr.log, and `perfharness doctor`."
    return [Finding("trace-missing", Severity.ERROR, message, hint, process.folder)]
