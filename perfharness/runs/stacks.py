"""The sampled stacks of a run's processes: from its profiling pass, where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.host_samples.host_profile import Spans, on_trace_clock
from perfharness.analysis.host_samples.stacks import Stack, outermost, spans_of_stages, stage_stacks
from perfharness.model.host_samples import HostProbe
from perfharness.model.result import path_text
from perfharness.model.trace import Trace
from perfharness.runs.clocks import machine_clock, on_utc
from perfharness.runs.explain import explaining_folder
from perfharness.runs.files.inputs import Located
from perfharness.runs.files.journals import host_probe_of, journals_of
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, read_manifest
from perfharness.trace import open_trace
from perfharness.trace.host_samples import RecordedProbe


@dataclass(frozen=True)
class SampledProcess:
    """A process whose threads were sampled: its samples on its trace's clock, and the ranges of its stages."""

    name: str
    probe: HostProbe
    stages: list[Spans]


def stacks_of_stages(located: Located, read_as: ReadAs = AS_LAUNCHED) -> dict[str, list[Stack]]:
    """The stacks of the outermost stages of each process, by both names; none where nothing was sampled.

    Raises `ResultError` where a manifest cannot be read, `TraceError` where a trace cannot.
    """
    stacks = {
        f"{process.name}: {path_text(stage.path)}": stage_stacks(process.probe, stage)
        for process in sampled_processes(located, read_as)
        for stage in outermost(process.stages)
    }
    return {name: of_name for name, of_name in stacks.items() if of_name}


def sampled_processes(located: Located, read_as: ReadAs = AS_LAUNCHED) -> Iterator[SampledProcess]:
    """Every process of a run, or of a trace with its samples next to it, that was sampled, one at a time.

    Raises `ResultError` where a manifest cannot be read, `TraceError` where a trace cannot.
    """
    if located.trace is not None:
        path = located.trace
        if (recorded := host_probe_of(path)) is not None:
            trace = on_utc(open_trace(path, parents=journals_of(path).parents, with_details=False), None)
            yield _sampled(located.name, recorded, trace, read_as.options())
    for run_dir in located.runs:
        measured = read_manifest(run_dir)
        names = {record.folder: name for name, record in located.processes_of(run_dir, measured)}
        folder = explaining_folder(run_dir, measured) or run_dir
        manifest = measured if folder == run_dir else read_manifest(folder)
        traces = ProcessTraces(folder)
        for record in manifest.measured_processes:
            if record.folder in names and (recorded := traces.host_probe(record)) is not None:
                trace = on_utc(traces.open(record, with_details=False), machine_clock(manifest))
                yield _sampled(names[record.folder], recorded, trace, read_as.options(manifest))


def _sampled(name: str, recorded: RecordedProbe, trace: Trace, options: AnalysisOptions) -> SampledProcess:
    stages = spans_of_stages(Analysis(trace, options))
    return SampledProcess(name, on_trace_clock(recorded, trace), stages)
