"""The trace of a measured process of a run, and what was sampled of it: its part of a file that several may share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from perfharness.model.manifest import ProcessRecord
from perfharness.model.trace import ID_MASK, Trace
from perfharness.runs.files.journals import Journals, journals_of_process
from perfharness.trace import open_trace
from perfharness.trace.host_samples import RecordedProbe, has_several_probes, read_host_probe
from perfharness.trace.processes import part_of_process


@dataclass
class ProcessTraces:
    """Reads the traces of a run's measured processes; one that several share is read once and kept until the next."""

    run_dir: Path
    _path: Path | None = None
    _with_details: bool = False
    _whole: Trace | None = None

    def open(self, process: ProcessRecord, *, with_details: bool = True) -> Trace:
        """The part of its trace that is of the process. Raises `TraceError`, also where it left none."""
        path = process.trace_path(self.run_dir)
        assert path is not None, "the caller has asked whether there is a trace"
        if self._whole is None or path != self._path or (with_details and not self._with_details):
            self._whole = None  # before the next is read: a trace is large
            parents = self.journals(process).parents
            self._whole = open_trace(path, parents=parents, with_details=with_details)
            self._path, self._with_details = path, with_details
        whole = self._whole
        measured = process.measured_self
        if measured is None:
            self._whole = None
            return whole
        pid = measured.pid if measured.trace_pid is None else measured.trace_pid
        part = part_of_process(whole, pid & ID_MASK)
        if part is whole:
            self._whole = None  # of one process: whoever asked has it
        return part

    def journals(self, process: ProcessRecord) -> Journals:
        """Those that its trace is checked against."""
        return journals_of_process(self.run_dir, process)

    def host_probe(self, process: ProcessRecord) -> RecordedProbe | None:
        """What was sampled of the process, and beside it of all that were launched together; None: nothing. In runs
        of earlier versions, of all that it started too.
        """
        if process.trace is None:
            return None
        folder, measured = self.run_dir / process.launched_folder, process.measured_self
        recorded = read_host_probe(folder, None if measured is None else measured.pid)
        if measured is None or recorded is None or not has_several_probes(folder):
            return recorded
        together = read_host_probe(folder)
        samples = None if together is None else together.probe.samples
        return replace(recorded, probe=replace(recorded.probe, together=samples))
