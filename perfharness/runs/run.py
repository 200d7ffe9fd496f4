"""Open a run, a process or a bare trace in Python, with Arrow tables (docs/guides/python-api.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.host_samples.stacks import Stack, stage_stacks
from perfharness.analysis.metrics.activity import ProcessActivity
from perfharness.analysis.slowest import Slowest
from perfharness.analysis.stages.checks import with_checks
from perfharness.errors import ResultError, TraceError, UsageError
from perfharness.model.findings import Finding, Severity, without_consequences
from perfharness.model.manifest import MeasuredProcess, ProcessRecord, RunManifest
from perfharness.model.result import BENCHMARK_MEAN_NAME, BENCHMARK_NAME, Tree, path_text
from perfharness.model.telemetry import SampleLog
from perfharness.notebook import notebook_html
from perfharness.runs.explain import explaining_folder
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.json_files import read_results
from perfharness.runs.files.process_traces import TraceSource, bare_trace, traces_of
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, read_manifest
from perfharness.runs.tables.operations import TABLES as OPERATION_TABLES
from perfharness.runs.tables.operations import operation_rows
from perfharness.runs.tables.ranges import batch_rows, range_rows, stage_rows

TABLES: dict[str, Callable[[Analysis, str], pa.Table]] = {
    "ranges": range_rows,
    "batches": batch_rows,
    "stages": stage_rows,
    **{name: partial(operation_rows, name) for name in OPERATION_TABLES},
}


class Process:
    """A measured process. Its trace is read when first needed, and kept until `release`.

    Attributes:
        name: `proc_X_gpu_Y`, `proc_X_gpu_Y/rank_R`, `proc_X_gpu_Y/child_K`, or the stem of a bare trace.
        trace_path: None without a trace.
        record: entry in the manifest, or None without a manifest.
    """

    def __init__(self, name: str, source: TraceSource, options: AnalysisOptions, tree: Sequence[Process] = ()) -> None:
        self.name = name
        self.folder = source.folder
        self.trace_path = source.path
        self.record = source.process
        self._source = source
        self._options = options
        self._tree = tree

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    @cached_property
    def analysis(self) -> Analysis | None:
        """Analysis of the trace, or None without a trace. Raises `TraceError`."""
        return None if self.trace_path is None else self._source.analysis(self._options)

    @property
    def measured(self) -> MeasuredProcess | None:
        """Pid, rank and GPUs of the process; None for a bare trace."""
        return None if self.record is None else self.record.measured_self

    def release(self) -> None:
        """Release the trace; the next query reads it again. Existing tables stay valid."""
        self.__dict__.pop("analysis", None)

    def problem(self) -> Finding | None:
        """Why the trace cannot be read, or None if it can or is missing."""
        try:
            _ = self.analysis
        except TraceError as error:
            return Finding("trace-unreadable", Severity.ERROR, str(error), process=self.name)
        return None

    def table(self, name: str) -> pa.Table:
        """One of `TABLES` of this process. Raises `ResultError` without a trace."""
        make = TABLES.get(name)
        if make is None:
            raise UsageError(f"Unknown table '{name}'; choose from {', '.join(TABLES)}.")
        if self.analysis is None:
            raise ResultError(f"{self.name} left no trace, so it has no tables; see its stderr.log.")
        return make(self.analysis, self.name)

    @property
    def session_start_unix_ns(self) -> int | None:
        """UTC of the trace's time 0, or None if unknown."""
        return None if self.analysis is None else self.analysis.trace.meta.session_start_unix_ns

    @property
    def benchmark(self) -> Tree | None:
        """`benchmark.json` of the folder, or None."""
        return read_results(self.folder / BENCHMARK_NAME)

    @cached_property
    def runs_batches(self) -> bool:
        """Whether the trace has a batch; False if unreadable."""
        was_read = "analysis" in vars(self)
        found = self.problem() is None and self.analysis is not None and self.analysis.runs_batches
        if not was_read:
            self.release()
        return found

    @property
    def findings(self) -> list[Finding]:
        """Findings about the trace, and about ranges that recorders counted but the trace lacks."""
        if self.analysis is None:
            return []
        found = with_checks(self.analysis.findings, self._source.journals.findings(self.analysis.trace))
        if self.record is not None:
            found = without_consequences(found, ended_well=self.record.ended == "ok")
            if self._is_helper(self.record):
                found = [one for one in found if one.code != "no-batches"]
        return [replace(finding, process=self.name) for finding in found]

    def _is_helper(self, record: ProcessRecord) -> bool:
        """Whether only other processes of its tree have batches (DataLoader workers); never a rank."""
        if self.runs_batches or record.rank is not None:
            return False
        return any(one.runs_batches for one in self._tree)


@dataclass(repr=False, eq=False)
class Run:
    """An opened run, series, process or trace.

    Attributes:
        manifest: `manifest.json`, or None for a series, a process or a bare trace.
        processes: all measured processes: each launched one, its ranks, then its other children. In a series, names
            begin with the name of the run.
    """

    path: Path
    manifest: RunManifest | None
    processes: tuple[Process, ...]
    _launch_findings: Sequence[Finding] = ()
    _located: Located | None = None
    _read_as: ReadAs = AS_LAUNCHED

    def __repr__(self) -> str:
        return f"<Run {self.path}: {len(self.processes)} process(es)>"

    def _repr_html_(self) -> str | None:
        return notebook_html(self)

    def table(self, name: str) -> pa.Table:
        """One of `TABLES` of all processes with a trace, one chunk each."""
        return join([process.table(name) for process in self.processes if process.trace_path is not None])

    def ranges(self) -> pa.Table:
        """One row per NVTX range, including those of other libraries."""
        return self.table("ranges")

    def batches(self) -> pa.Table:
        """One row per batch."""
        return self.table("batches")

    def stages(self) -> pa.Table:
        """One row per stage and batch."""
        return self.table("stages")

    def kernels(self) -> pa.Table:
        """One row per kernel."""
        return self.table("kernels")

    def copies(self) -> pa.Table:
        """One row per copy."""
        return self.table("copies")

    def memsets(self) -> pa.Table:
        """One row per memset."""
        return self.table("memsets")

    def graphs(self) -> pa.Table:
        """One row per replay of a CUDA graph traced as a whole."""
        return self.table("graphs")

    def read_processes(self, findings: list[Finding]) -> Iterator[tuple[Process, Analysis]]:
        """Iterate over processes with a readable trace, and append findings.

        Delete each analysis, because its trace is released before the next one is read. Raises `TraceError` if the only
        trace cannot be read.
        """
        traced = [process for process in self.processes if process.trace_path is not None]
        for process in traced:
            if len(traced) > 1 and (problem := process.problem()) is not None:
                findings.append(problem)
            elif process.analysis is not None:
                yield process, process.analysis
                findings += process.findings
                process.release()

    def stacks(self) -> dict[str, list[Stack]]:
        """Sampled stacks by process and outermost stage, of the profiling pass if any."""
        found: dict[str, list[Stack]] = {}
        for process, analysis in (self.explaining or self).read_processes([]):
            found |= named_stacks(process.name, analysis)
            del analysis
        return found

    def slowest(self, most: int = 10, *, explained: bool = False) -> Slowest:
        """Slowest batches (requests) of each loop over all processes, and a typical one.

        Args:
            most: number per loop.
            explained: whether to read the profiling pass.

        Raises:
            UsageError: `most` is below 1, or the profiling pass is missing.
            ResultError: no trace can be read.
        """
        return self.find_slowest(most, explained=explained)[0]

    def find_slowest(self, most: int, *, explained: bool = False) -> tuple[Slowest, list[Finding]]:
        """Slowest batches as `slowest`, with findings about the traces."""
        from perfharness.runs.slowest import SlowestOfRun

        if most < 1:
            raise UsageError(f"Cannot show {most} requests; use 1 or more.")
        run = self.explaining if explained else self
        if run is None:
            raise UsageError(f"{self.path} has no profiling pass; `perfharness launch --explain` makes one.")
        seen, findings = SlowestOfRun(run.path, run.manifest, most), run.launch_findings
        for process, analysis in run.read_processes(findings):
            seen.visit(process.name, process.folder, process.record, analysis)
            del analysis
        if not seen.has_seen:
            reasons = "".join(f" {finding.message}" for finding in findings)
            raise ResultError(f"{run.path} has no readable trace, so slow requests are unknown.{reasons}")
        return seen.result()[0], findings

    @cached_property
    def explaining(self) -> Run | None:
        """The profiling pass (`--explain`), read as this run, or None."""
        if self._located is None or len(self._located.runs) != 1:
            return None
        (run_dir,) = self._located.runs
        folder = explaining_folder(run_dir, read_manifest(run_dir))
        if folder is None:
            return None
        return open_located(replace(self._located, path=folder, runs=(folder,)), self._read_as)

    @property
    def launch_findings(self) -> list[Finding]:
        """Findings of the launcher."""
        return list(self._launch_findings)

    @property
    def findings(self) -> list[Finding]:
        """Findings of the launcher and of the traces."""
        return self.launch_findings + [finding for process in self.processes for finding in process.findings]

    @property
    def benchmark(self) -> Tree | None:
        """`benchmark_mean.json` of a run, `benchmark.json` of one process, or None."""
        if self.manifest is not None:
            return read_results(self.path / BENCHMARK_MEAN_NAME)
        is_process = len(self.processes) == 1 and self.processes[0].folder.resolve() == self.path.resolve()
        return self.processes[0].benchmark if is_process else None


def open_run(
    path: str | Path,
    *,
    warmup_batches: int | None = None,
    domain: str | None = None,
    batch_pattern: str | None = None,
) -> Run:
    """Open a run, a process of it, a series, or a trace. Needs no GPU or CUDA.

    Args:
        path: the -o folder of a launch, a `proc_X_gpu_Y` in it, or a trace: a sqlite file, or an `.nsys-rep`, which
            nsys exports next to it.
        warmup_batches: warm-up batches at both ends of each loop (default: as launched, or 0 for a trace).
        domain: NVTX domain to read as plain NVTX; `nvtx` is the default domain.
        batch_pattern: regular expression for names of plain NVTX ranges that are batches.

    Raises:
        ResultError: the path is not a run.
        ToolNotFoundError, TraceFormatError: an `.nsys-rep` cannot be exported.
        TraceError: a trace cannot be read (raised by tables).
    """
    located = locate(Path(path))
    return open_located(located, ReadAs(warmup_batches, domain, batch_pattern))


def open_located(located: Located, read_as: ReadAs = AS_LAUNCHED) -> Run:
    """Open located runs or a trace, as `open_run`."""
    if located.trace is not None:
        process = Process(located.name, bare_trace(located.trace), read_as.options())
        return Run(located.path, None, (process,))
    processes: list[Process] = []
    findings: list[Finding] = []
    manifest = None
    for run_dir in located.runs:
        manifest = read_manifest(run_dir)
        processes += _processes_of(run_dir, manifest, located, read_as)
        if located.process is None:
            before = f"{run_dir.name}/" if located.is_series else ""
            found = manifest.findings
            findings += [replace(finding, process=finding.process and before + finding.process) for finding in found]
    is_run = located.process is None and not located.is_series
    return Run(located.path, manifest if is_run else None, tuple(processes), findings, located, read_as)


def _processes_of(run_dir: Path, manifest: RunManifest, located: Located, read_as: ReadAs) -> Iterator[Process]:
    """Requested processes of a run, each with its tree."""
    options, traces = read_as.options(manifest), traces_of(run_dir, manifest)
    trees: dict[str, list[Process]] = {}
    for record in manifest.measured_processes:
        tree = trees.setdefault(record.launched_folder, [])
        name = located.name_in(run_dir, record)
        tree.append(Process(name, traces[record.folder], options, tree))
    for process in chain.from_iterable(trees.values()):
        if process.record is not None and located.names_process(process.record.folder):
            yield process


def named_stacks(process: str, analysis: Analysis) -> dict[str, list[Stack]]:
    """Sampled stacks by process and outermost stage."""
    if analysis.host_probe is None:
        return {}
    return {f"{process}: {path_text(path)}": stacks for path, stacks in stage_stacks(analysis).items()}


def join(tables: list[pa.Table]) -> pa.Table:
    """Join tables of several processes, one chunk each, with one dictionary per column as files need."""
    if not tables:
        raise ResultError("No process has a readable trace; see manifest.json and `perfharness analyze`.")
    return pa.concat_tables(tables).unify_dictionaries()


@dataclass(frozen=True)
class SampledRun:
    """Telemetry of a run and activities of its processes by folder, for charts."""

    title: str
    log: SampleLog
    activities: dict[str, ProcessActivity] = field(default_factory=dict)
    gpu_titles: dict[str, str] = field(default_factory=dict)  # by UUID
