"""A run folder, from the traces in it to benchmark.json per process and benchmark_mean.json.

Needs no GPU, CUDA, nsys or torch: everything is recomputed from what is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from perfharness.analysis.combine import combine
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose, pool
from perfharness.analysis.energy.work import gpu_work
from perfharness.analysis.measures import measure
from perfharness.analysis.metrics.clocks import Throttling
from perfharness.analysis.range_table import build_range_table
from perfharness.analysis.stages import find_stages
from perfharness.analysis.startup import first_cuda, startup
from perfharness.analysis.tabulate import tabulate_measured
from perfharness.analysis.trace_clock import clock_findings
from perfharness.errors import ResultError, TraceError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MANIFEST_NAME, ProcessRecord, RunManifest
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, ProcessResult, Tree
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import Events, Trace, TraceMeta
from perfharness.report.clocks import machine_clock, on_utc
from perfharness.report.files import write_json
from perfharness.report.gpu_sharing import GpuSharing
from perfharness.report.journals import Journals, journals_beside
from perfharness.report.meta import mean_meta, process_meta
from perfharness.report.telemetry import RunTelemetry
from perfharness.trace import open_stream, open_trace
from perfharness.trace.parquet_folder import is_parquet_trace

PARQUET_ENDING = "_pqtdir"
"""What nsys adds to the name of a Parquet folder when it is not told a name."""


@dataclass(frozen=True)
class ReadOptions:
    """How traces are read: batches set apart, and what plain NVTX ranges mean."""

    warmup_batches: int = 0
    domain: str | None = None
    batch_pattern: str | None = None
    reject_throttled: bool = False


@dataclass(frozen=True)
class RunSummary:
    """What became of a run: the mean tree, each process's result, and everything found."""

    folder: Path
    mean: Tree
    results: dict[str, ProcessResult]
    findings: list[Finding]


@dataclass(frozen=True)
class _Analysed:
    result: ProcessResult
    trace_meta: TraceMeta
    journals: Journals


def is_run_folder(path: Path) -> bool:
    """Whether a path is to be read as a run: any folder but a trace in Parquet."""
    return path.is_dir() and ((path / MANIFEST_NAME).is_file() or not is_parquet_trace(path))


def trace_name(path: Path) -> str:
    """What a trace is called: its file or folder name without the ending that its format gives it."""
    return path.name.removesuffix(PARQUET_ENDING) if path.is_dir() else path.stem


def read_manifest(folder: Path) -> RunManifest:
    """The run's manifest. Raises `ResultError` where the folder holds none or it cannot be read."""
    path = folder / MANIFEST_NAME
    try:
        return RunManifest.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError(
            f"{folder} holds no {MANIFEST_NAME}, so it is not a run folder; give the folder that was passed to "
            "`perfharness launch -o`, or a trace: a file, or a folder that `nsys export --type parquetdir` wrote."
        ) from None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        reason = f"{error}".splitlines()[0]
        raise ResultError(
            f"{path} cannot be read ({reason}); it was written by another program, or is damaged."
        ) from error


def analyze_run(
    run_dir: Path,
    manifest: RunManifest,
    *,
    warmup_batches: int | None = None,
    domain: str | None = None,
    batch_pattern: str | None = None,
    reject_throttled: bool | None = None,
) -> RunSummary:
    """Recompute both kinds of JSON files of a run; options left None are those of the run itself.

    Processes without a readable trace get no benchmark.json; the others' are written all the same.
    """
    options = ReadOptions(
        warmup_batches=manifest.warmup_batches if warmup_batches is None else warmup_batches,
        domain=domain or manifest.domain,
        batch_pattern=batch_pattern or manifest.batch_pattern,
        reject_throttled=manifest.reject_throttled if reject_throttled is None else reject_throttled,
    )
    findings = [record.to_finding() for record in manifest.findings]
    all_analysed: dict[str, _Analysed] = {}
    sharing = GpuSharing(run_dir, manifest)
    telemetry = RunTelemetry(run_dir, manifest)
    for process in manifest.processes:
        (run_dir / process.folder / BENCHMARK_NAME).unlink(missing_ok=True)
        analysed, problems = _analyze_process(run_dir, manifest, process, options, sharing, telemetry)
        findings.extend(problems)
        if analysed is not None:
            all_analysed[process.folder] = analysed
    results = {folder: analysed.result for folder, analysed in all_analysed.items()}
    machine = telemetry.conclude(results, reject_throttled=options.reject_throttled)
    findings.extend(machine.findings)
    for process in manifest.processes:
        if (analysed := all_analysed.get(process.folder)) is None:
            continue
        own = [finding for finding in findings if finding.process == process.folder]
        meta = process_meta(
            manifest, process, analysed.result, analysed.trace_meta, analysed.journals.main, options.warmup_batches, own
        )
        results[process.folder] = replace(analysed.result, meta=meta)
        body = {
            **benchmark_tree(results[process.folder]),
            **machine.process_tree(process.folder),
            **_startup(process, analysed),
        }
        write_json(run_dir / process.folder / BENCHMARK_NAME, body)
    included, partial = _included(manifest, results)
    findings.extend(partial)
    mean = {
        **combine(included),
        **_pooled_diagnosis(included),
        **machine.mean_tree(),
        "meta": mean_meta(manifest, included, options.warmup_batches, findings),
    }
    write_json(run_dir / BENCHMARK_MEAN_NAME, mean)
    return RunSummary(run_dir, mean, results, findings)


def benchmark_tree(result: ProcessResult) -> Tree:
    """The body of benchmark.json."""
    diagnosis = {} if result.diagnosis is None else {"diagnosis": result.diagnosis.to_json()}
    return {
        "data": result.entries,
        "mean_data": result.mean_data,
        "stats_minus_warmup": result.stats_minus_warmup,
        **diagnosis,
        "meta": result.meta,
    }


def _startup(process: ProcessRecord, analysed: _Analysed) -> Tree:
    if process.start_unix_ns is None:
        return {}
    result = analysed.result
    found = startup(
        process.start_unix_ns, analysed.journals.main, result.loops, result.first_cuda, clock_is_utc=result.clock_is_utc
    )
    return {"startup": found.to_json()}


def _pooled_diagnosis(results: dict[str, ProcessResult]) -> Tree:
    diagnoses = {name: result.diagnosis for name, result in results.items() if result.diagnosis is not None}
    return {"diagnosis": pool(diagnoses).to_json()} if diagnoses else {}


def _analyze_process(
    run_dir: Path,
    manifest: RunManifest,
    process: ProcessRecord,
    options: ReadOptions,
    sharing: GpuSharing,
    telemetry: RunTelemetry,
) -> tuple[_Analysed | None, list[Finding]]:
    folder = run_dir / process.folder
    if process.trace is None:
        return None, _no_trace(manifest, process)
    journals = journals_beside(folder / process.trace)
    try:
        result, trace_meta = analyze_trace(
            folder / process.trace,
            options,
            journals,
            others=partial(sharing.others_of, process),
            machine=machine_clock(manifest),
            throttling=telemetry.throttling(process),
            with_gpu_work=telemetry.log is not None,
        )
    except TraceError as error:
        unreadable = Finding("trace-unreadable", Severity.ERROR, str(error), process=process.folder)
        return None, [unreadable]
    findings = [replace(finding, process=process.folder) for finding in result.findings]
    return _Analysed(result, trace_meta, journals), findings


def analyze_trace(
    path: Path,
    options: ReadOptions,
    journals: Journals | None = None,
    others: OtherProcesses | Callable[[Trace], OtherProcesses] | None = ALONE,
    machine: ClockTieRecord | None = None,
    throttling: Throttling | None = None,
    *,
    with_gpu_work: bool = False,
) -> tuple[ProcessResult, TraceMeta]:
    """The result of one trace file, checked against the recorders' counts where they are there.

    Args:
        path, options: the trace and how to read it.
        journals: what the recorders counted; None: what lies beside the trace.
        others: the run's other processes on the same GPU, or what finds them once this trace was read; None: leave the
            diagnosis out, which takes time of its own.
        machine: UTC against the monotonic clock beside the run, where it was sampled.
        throttling: when the clocks of the process's GPU were kept down; None: not known.
        with_gpu_work: say what the GPU did when, for telemetry's sake.
    """
    journals = journals_beside(path) if journals is None else journals
    # Only the diagnosis and telemetry need all calls and operations at once.
    whole = None
    if others is not None or with_gpu_work:
        whole = on_utc(open_trace(path, details=others is not None, parents=journals.parents), machine)
    events: Events = on_utc(open_stream(path, parents=journals.parents), machine) if whole is None else whole
    table = build_range_table(events)
    stages = find_stages(events, options.domain, options.batch_pattern, table.nesting)
    measures = measure(stages, table, options.warmup_batches)
    range_findings, kept = table.findings, None if whole is None else table
    del table  # as large as all that is to come
    result = tabulate_measured(
        events,
        range_findings,
        stages,
        measures,
        options.warmup_batches,
        throttling,
        reject_throttled=options.reject_throttled,
    )
    diagnosis = work = None
    if whole is not None and kept is not None:
        beside = others(whole) if callable(others) else others
        diagnosis = None if beside is None else diagnose(whole, kept, stages, options.warmup_batches, beside)
        work = gpu_work(whole, kept, stages) if with_gpu_work else None
        result = replace(result, first_cuda=first_cuda(whole))
    findings = [*result.findings, *journals.findings(events), *clock_findings(events.meta.clock)]
    return replace(result, findings=findings, diagnosis=diagnosis, gpu_work=work), events.meta


def _no_trace(manifest: RunManifest, process: ProcessRecord) -> list[Finding]:
    said = any(
        finding.process == process.folder and finding.severity == Severity.ERROR for finding in manifest.findings
    )
    if said or process.ended != "ok":
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


def _included(
    manifest: RunManifest, results: dict[str, ProcessResult]
) -> tuple[dict[str, ProcessResult], list[Finding]]:
    """Results that the mean is made of: those of processes that ended well, or, where none did, all there are."""
    well = {process.folder for process in manifest.processes if process.ended == "ok"}
    included = {folder: result for folder, result in results.items() if folder in well}
    left_out = sorted(set(results) - set(included))
    if not left_out:
        return included, []
    if included:
        message = (
            f"The mean leaves out {', '.join(left_out)}: the process did not end well, so its trace may be cut short."
        )
        return included, [Finding("mean-without-failed", Severity.WARNING, message)]
    message = "No process ended well; the mean is made of what their traces hold up to the end."
    return results, [Finding("mean-of-failed", Severity.ERROR, message)]
