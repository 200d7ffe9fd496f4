"""Read the traces of measured processes, their recorder journals, and samples of the host probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.stages.checks import check_journals
from perfharness.analysis.stages.startup import startup
from perfharness.analysis.timeline.clock import tie_trace_clock
from perfharness.errors import ResultError
from perfharness.files import read_model
from perfharness.model.conditions import condition
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME, RecorderJournal
from perfharness.model.manifest import BENCHMARK_NAME, ProcessRecord, RunManifest
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import ID_MASK, Trace
from perfharness.runs.files.json_files import read_results
from perfharness.trace import open_trace
from perfharness.trace.host_samples import RecordedProbe, has_several_probes, read_host_probe
from perfharness.trace.processes import part_of_process


@dataclass(frozen=True)
class Journals:
    """Counts of a process's recorders; `parents` is the process tree known to journals."""

    own: RecorderJournal | None = None
    unreadable: Finding | None = None
    parents: Mapping[int, int] = field(default_factory=dict)
    of_child: bool = False

    def findings(self, trace: Trace) -> list[Finding]:
        """Report ranges and items that the trace lacks, or why they were not checked."""
        if self.unreadable is not None:
            return [self.unreadable]
        return [] if self.own is None else check_journals([self.own], trace, of_child=self.of_child)


class SharedTrace:
    """The trace that was read last. Several processes of a run may share one (nsys)."""

    def __init__(self) -> None:
        self._key: tuple[Path, bool] | None = None
        self._trace: Trace | None = None

    def read(self, path: Path, parents: Mapping[int, int], *, with_details: bool) -> Trace:
        """Read a trace with all processes. Raises `TraceError`."""
        if self._trace is None or self._key not in ((path, True), (path, with_details)):
            self._trace = None  # free memory first
            self._trace = open_trace(path, parents=parents, with_details=with_details)
            self._key = path, with_details
        return self._trace

    def release(self) -> None:
        """Release the trace."""
        self._trace = None


@dataclass
class TraceSource:
    """A trace and its journals and samples.

    Args:
        path: None if the process left no trace.
        launched: folder of the launched process.
        process: process whose part of the trace is read, or None for a bare trace.
        clock: UTC against the monotonic clock during the run.
        node_offset_ns: UTC of node 0 minus that of this machine, included in `clock`.
    """

    path: Path | None
    folder: Path
    launched: Path
    process: ProcessRecord | None = None
    shared: SharedTrace = field(default_factory=SharedTrace)
    clock: ClockTieRecord | None = None
    node_offset_ns: int = 0

    def analysis(self, options: AnalysisOptions, *, with_details: bool = True) -> Analysis:
        """Analyse the trace with its samples. Raises `TraceError`."""
        recorded, trace = self.host_probe, self.open(with_details=with_details)
        if recorded is not None:
            recorded = replace(recorded, unix_ns=recorded.unix_ns + self.node_offset_ns)
        return Analysis(trace, options, None if recorded is None else on_trace_clock(recorded, trace))

    def open(self, *, with_details: bool = True) -> Trace:
        """Read the trace, with the best estimate of UTC as its session start. Raises `TraceError`."""
        assert self.path is not None, "the caller checks that the trace exists"
        whole = self.shared.read(self.path, self.journals.parents, with_details=with_details)
        part = whole
        if self.process is not None:
            measured = self.process.measured_self
            part = part_of_process(whole, (measured.trace_pid or measured.pid) & ID_MASK)
        if part is whole:
            self.shared.release()  # no other process needs it
        start = part.meta.session_start_unix_ns
        if start is not None and self.node_offset_ns:
            part = replace(part, meta=replace(part.meta, session_start_unix_ns=start + self.node_offset_ns))
        clock = tie_trace_clock(part, self.clock)
        if clock is None:
            return part
        return replace(part, meta=replace(part.meta, session_start_unix_ns=clock.unix_origin_ns, clock=clock))

    @cached_property
    def journals(self) -> Journals:
        """Journal of the process, and the process tree of all journals."""
        if not self._has_files_beside:
            return Journals()
        parents: dict[int, int] = {}
        for path in (self.launched / JOURNAL_NAME, *self.launched.glob(f"*/{JOURNAL_NAME}")):
            if isinstance(one := read_journal(path), RecorderJournal):
                parents |= dict(pairwise([one.pid, *one.above]))
        own = read_journal(self.folder / JOURNAL_NAME)
        if isinstance(own, Finding):
            return Journals(unreadable=own, parents=parents)
        if own is not None and self.process is not None and own.pid != self.process.pid:
            own = None  # another process of the tree wrote it
        return Journals(own, parents=parents, of_child=self.folder != self.launched)

    @property
    def host_probe(self) -> RecordedProbe | None:
        """Samples of the process, and of all processes launched together; None without samples."""
        if not self._has_files_beside:
            return None
        own = read_host_probe(self.launched, None if self.process is None else self.process.measured_self.pid)
        if own is None or self.process is None or not has_several_probes(self.launched):
            return own
        together = read_host_probe(self.launched)
        samples = None if together is None else together.probe.samples
        return replace(own, probe=replace(own.probe, together=samples))

    @property
    def _has_files_beside(self) -> bool:
        """Whether the trace is in the folder of a process."""
        return self.path is not None and (self.process is not None or self.path.name == TRACE_NAME)


def bare_trace(path: Path) -> TraceSource:
    """Source of a trace outside of a run."""
    return TraceSource(path, path.parent, path.parent)


def traces_of(run_dir: Path, manifest: RunManifest) -> dict[str, TraceSource]:
    """Traces of the measured processes of a run, by folder."""
    shared, sources = SharedTrace(), {}
    for one in manifest.measured_processes:
        node = manifest.node_of(one)
        sampler = manifest.machine_of(one).companions.get("telemetry", {})
        clock = condition(sampler, "clock", ClockTieRecord)
        offset_ns = 0 if node is None else node.clock_offset_ns
        if clock is not None and node is not None:
            moved = {"offset_ns": clock.offset_ns + offset_ns, "error_ns": clock.error_ns + node.clock_error_ns}
            clock = clock.model_copy(update=moved)
        launched = run_dir / one.launched_folder
        path = one.trace_path(run_dir)
        sources[one.folder] = TraceSource(path, run_dir / one.folder, launched, one, shared, clock, offset_ns)
    return sources


def startup_of(
    run_dir: Path, process: ProcessRecord, container_start_unix_ns: int | None = None
) -> dict[str, Any] | None:
    """Start-up of a process: from its results, or from the recorder's journal if untraced."""
    folder = run_dir / process.folder
    try:
        analysed: dict[str, Any] | None = (read_results(folder / BENCHMARK_NAME) or {}).get("startup")
    except ResultError:
        analysed = None
    if analysed is not None or process.start_unix_ns is None:
        return analysed
    journal = read_journal(folder / JOURNAL_NAME)
    if not isinstance(journal, RecorderJournal):
        return None
    return startup(process.start_unix_ns, journal, container_start_unix_ns=container_start_unix_ns).to_json()


def read_journal(path: Path) -> RecorderJournal | Finding | None:
    """Read a journal; None if missing (a script may have no recorder), a finding if unreadable."""
    try:
        return read_model(path, RecorderJournal, "so the trace was not checked against its counts.")
    except ResultError as error:
        return Finding("recorder-counts-unreadable", Severity.WARNING, str(error))
