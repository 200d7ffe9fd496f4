"""The traces of measured processes and what lies beside them: recorder journals and samples of the host probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.stages.checks import check_journals
from perfharness.files import reason_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME, RecorderJournal
from perfharness.model.manifest import ProcessRecord
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.model.telemetry import ClockTieRecord
from perfharness.model.trace import ID_MASK, Trace
from perfharness.runs.clocks import on_utc
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


class BareTrace:
    """A trace file that is in no run; journals and samples may lie beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_in_process_folder = path.name == TRACE_NAME

    def open(self, *, with_details: bool = True) -> Trace:
        """Read it. Raises `TraceError`."""
        return open_trace(self.path, parents=self.journals.parents, with_details=with_details)

    @cached_property
    def journals(self) -> Journals:
        """What it is checked against."""
        return _read_journals(self.path.parent, self.path.parent) if self._is_in_process_folder else Journals()

    @property
    def host_probe(self) -> RecordedProbe | None:
        """What was sampled of its process; None: nothing."""
        return read_host_probe(self.path.parent) if self._is_in_process_folder else None


class ProcessTraces:
    """Reads the traces of a run; one that several processes share (nsys) is kept until the next one is read."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._held: tuple[Path, bool, Trace] | None = None

    def of(self, process: ProcessRecord) -> ProcessTrace:
        """The trace of a measured process."""
        return ProcessTrace(self, process)

    def whole(self, path: Path, parents: Mapping[int, int], *, with_details: bool) -> Trace:
        """A trace with all of its processes. Raises `TraceError`."""
        if self._held is not None and self._held[0] == path and self._held[1] >= with_details:
            return self._held[2]
        self._held = None  # before the next is read: a trace is large
        trace = open_trace(path, parents=parents, with_details=with_details)
        self._held = path, with_details, trace
        return trace

    def release(self) -> None:
        """Keep no trace."""
        self._held = None


class ProcessTrace:
    """The trace of a measured process of a run: its part of a file that several may share."""

    def __init__(self, traces: ProcessTraces, process: ProcessRecord) -> None:
        self.path = process.trace_path(traces.run_dir)
        self._traces = traces
        self._process = process
        self._launched = traces.run_dir / process.launched_folder

    def open(self, *, with_details: bool = True) -> Trace:
        """Read it. Raises `TraceError`."""
        assert self.path is not None, "the caller has asked whether there is a trace"
        whole = self._traces.whole(self.path, self.journals.parents, with_details=with_details)
        measured = self._process.measured_self
        part = part_of_process(whole, (measured.trace_pid or measured.pid) & ID_MASK)
        if part is whole:
            self._traces.release()  # it is of one process: the caller has it
        return part

    @cached_property
    def journals(self) -> Journals:
        """What it is checked against: the journal of the process, with the process tree of all journals."""
        found = _read_journals(self._launched, self._traces.run_dir / self._process.folder)
        found = replace(found, of_child=self._process.folder != self._process.launched_folder)
        is_own = found.own is None or found.own.pid == self._process.pid
        return found if is_own else replace(found, own=None)  # another process of the tree wrote it

    @property
    def host_probe(self) -> RecordedProbe | None:
        """What was sampled of the process, beside all that were launched together; None: nothing."""
        if self.path is None:
            return None
        own = read_host_probe(self._launched, self._process.measured_self.pid)
        if own is None or not has_several_probes(self._launched):
            return own
        together = read_host_probe(self._launched)
        samples = None if together is None else together.probe.samples
        return replace(own, probe=replace(own.probe, together=samples))


TraceSource = BareTrace | ProcessTrace


def analysis_on_utc(
    source: TraceSource, options: AnalysisOptions, machine: ClockTieRecord | None, *, with_details: bool = True
) -> Analysis:
    """The analysis of a trace with its samples, on UTC by the clock of the machine if that is known.

    Raises `TraceError`.
    """
    recorded = source.host_probe
    trace = on_utc(source.open(with_details=with_details), machine)
    return Analysis(trace, options, None if recorded is None else on_trace_clock(recorded, trace))


def read_journal(path: Path) -> RecorderJournal | Finding | None:
    """A journal; None if there is none: a script may have no recorder. A finding if it cannot be read."""
    try:
        return RecorderJournal.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = reason_of(error)
    except ValidationError as error:
        reason = f"{error}".splitlines()[0]
    message = f"{path.name} cannot be read ({reason}), so the trace was not checked against its counts."
    return Finding("recorder-counts-unreadable", Severity.WARNING, message)


def _read_journals(launched: Path, folder: Path) -> Journals:
    """The journal in the folder of a process, and the tree of its launched process."""
    own = read_journal(folder / JOURNAL_NAME)
    parents: dict[int, int] = {}
    for path in (launched / JOURNAL_NAME, *launched.glob(f"*/{JOURNAL_NAME}")):
        one = read_journal(path)
        if isinstance(one, RecorderJournal):
            parents |= dict(pairwise([one.pid, *one.above]))
    if isinstance(own, Finding):
        return Journals(unreadable=own, parents=parents)
    return Journals(own, parents=parents)
