"""Which processes of a run work for others of their tree: no batch is expected of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.errors import TraceError
from perfharness.model.findings import Finding
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.runs.files.process_traces import ProcessTraces


@dataclass
class Helpers:
    """Processes without batches in a tree of which others run some: workers of a loader, and what starts workers.

    A rank is none: it was to do the same as the others. What is not noted yet is read where it decides.
    """

    traces: ProcessTraces
    manifest: RunManifest
    options: AnalysisOptions
    _run_batches: dict[str, bool] = field(default_factory=dict)

    def note(self, process: ProcessRecord, *, runs_batches: bool) -> None:
        """What the trace of a process says, so that it is not read for it again."""
        self._run_batches[process.folder] = runs_batches

    def is_helper(self, process: ProcessRecord) -> bool:
        """Whether a process, whose trace can be read, is one."""
        measured = process.measured_self
        if (measured is not None and measured.rank is not None) or self._runs_batches(process):
            return False
        tree = [one for one in self.manifest.measured_processes if one.launched_folder == process.launched_folder]
        return any(self._runs_batches(one) for one in sorted(tree, key=lambda one: one.folder not in self._run_batches))

    def expected(self, process: ProcessRecord, findings: list[Finding]) -> list[Finding]:
        """The findings about a process without what is expected of a helper."""
        if any(one.code == "no-batches" for one in findings) and self.is_helper(process):
            return [one for one in findings if one.code != "no-batches"]
        return findings

    def _runs_batches(self, process: ProcessRecord) -> bool:
        if process.folder not in self._run_batches:
            self._run_batches[process.folder] = self._read(process)
        return self._run_batches[process.folder]

    def _read(self, process: ProcessRecord) -> bool:
        if process.trace is None:
            return False
        try:
            trace = replace(self.traces).open(process, with_details=False)
        except TraceError:
            return False
        return Analysis(trace, self.options).runs_batches
