"""The traces of measured processes and what lies beside them: recorder journals and samples of the host probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.stages.checks import check_journals
from perfharness.analysis.stages.startup import startup
from perfharness.analysis.timeline.clock import tie_trace_clock
from perfharness.errors import ResultError
from perfharness.files import read_model
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
    """What the recorders of a process counted; `parents`: its process tree, as far as journals know it."""

    own: RecorderJournal | None = None
    unreadable: Finding | None = None
    parents: Mapping[int, int] = field(default_factory=dict)
    of_child: bool = False

    def findings(self, trace: Trace) -> list[Finding]:
        """Recorded ranges and items that the trace lacks, or why that was not checked."""
        if self.unreadable is not None:
            return [self.unreadable]
        return [] if self.own is None else check_journals([self.own], trace, of_child=self.of_child)


class SharedTrace:
    """The last trace that was read: several processes of a run may share one (nsys)."""

    def __init__(self) -> None:
        self._key: tuple[Path, bool] | None = None
        self._trace: Trace | None = None

    def read(self, path: Path, parents: Mapping[int, int], *, with_details: bool) -> Trace:
        """A trace with all of its processes. Raises `TraceError`."""
        if self._trace is None or self._key not in ((path, True), (path, with_details)):
            self._trace = None  # before the next is read: a trace is large
            self._trace = open_trace(path, parents=parents, with_details=with_details)
            self._key = path, with_details
        return self._trace

    def release(self) -> None:
        """Keep no trace."""
        self._trace = None


@dataclass
class TraceSource:
    """A trace, and what lies beside it."""

    path: Path | None  # None if the process left none
    folder: Path  # of the journal of its process
    launched: Path  # folder of the launched process that it belongs to
    process: ProcessRecord | None = None  # only its part of the trace is read; None: a file that is in no run
    shared: SharedTrace = field(default_factory=SharedTrace)
    clock: ClockTieRecord | None = None  # UTC against the monotonic clock during the run
    node_offset_ns: int = 0  # node 0's UTC less that of its machine, which `clock` includes

    def analysis(self, options: AnalysisOptions, *, with_details: bool = True) -> Analysis:
        """The analysis of the trace with its samples. Raises `TraceError`."""
        recorded, trace = self.host_probe, self.open(with_details=with_details)
        if recorded is not None:
            recorded = replace(recorded, unix_ns=recorded.unix_ns + self.node_offset_ns)
        return Analysis(trace, options, None if recorded is None else on_trace_clock(recorded, trace))

    def open(self, *, with_details: bool = True) -> Trace:
        """Read it, with the best that is known of UTC as its session start. Raises `TraceError`."""
        assert self.path is not None, "the caller has asked whether there is a trace"
        whole = self.shared.read(self.path, self.journals.parents, with_details=with_details)
        part = whole
        if self.process is not None:
            measured = self.process.measured_self
            part = part_of_process(whole, (measured.trace_pid or measured.pid) & ID_MASK)
        if part is whole:
            self.shared.release()  # it is of one process: the caller has it
        start = part.meta.session_start_unix_ns
        if start is not None and self.node_offset_ns:
            part = replace(part, meta=replace(part.meta, session_start_unix_ns=start + self.node_offset_ns))
        clock = tie_trace_clock(part, self.clock)
        if clock is None:
            return part
        return replace(part, meta=replace(part.meta, session_start_unix_ns=clock.unix_origin_ns, clock=clock))

    @cached_property
    def journals(self) -> Journals:
        """What the trace is checked against: the journal of the process; and the tree that all journals know."""
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
        """What was sampled of the process, beside all that were launched together; None: nothing."""
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
        """Whether it lies in the folder of a process, as a launch arranges it."""
        return self.path is not None and (self.process is not None or self.path.name == TRACE_NAME)


def bare_trace(path: Path) -> TraceSource:
    """A trace file that is in no run."""
    return TraceSource(path, path.parent, path.parent)


def traces_of(run_dir: Path, manifest: RunManifest) -> dict[str, TraceSource]:
    """The trace of each measured process of a run, by its folder."""
    shared, sources = SharedTrace(), {}
    for one in manifest.measured_processes:
        node = manifest.node_of(one)
        clock = _machine_clock(manifest.machine_of(one).companions)
        offset_ns = 0 if node is None else node.clock_offset_ns
        if clock is not None and node is not None:
            moved = {"offset_ns": clock.offset_ns + offset_ns, "error_ns": clock.error_ns + node.clock_error_ns}
            clock = clock.model_copy(update=moved)
        launched = run_dir / one.launched_folder
        path = one.trace_path(run_dir)
        sources[one.folder] = TraceSource(path, run_dir / one.folder, launched, one, shared, clock, offset_ns)
    return sources


def _machine_clock(companions: Mapping[str, Mapping[str, Any]]) -> ClockTieRecord | None:
    """UTC against the monotonic clock, as the sampler of a machine read them; None: nothing was sampled."""
    try:
        return ClockTieRecord.model_validate(companions.get("telemetry", {}).get("clock"))
    except ValidationError:
        return None


def startup_of(
    run_dir: Path, process: ProcessRecord, container_start_unix_ns: int | None = None
) -> dict[str, Any] | None:
    """The start-up of a process of a run: as analysed, or of an untraced one from what the recorder noted."""
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
    """A journal; None if there is none: a script may have no recorder. A finding if it cannot be read."""
    try:
        return read_model(path, RecorderJournal, "so the trace was not checked against its counts.")
    except ResultError as error:
        return Finding("recorder-counts-unreadable", Severity.WARNING, str(error))
