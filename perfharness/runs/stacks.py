"""The sampled stacks of a run's processes: from its profiling pass, where it has one."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.host_samples.clock import on_trace_clock
from perfharness.analysis.host_samples.stacks import Stack, stage_stacks
from perfharness.model.result import path_text
from perfharness.runs.clocks import machine_clock, on_utc
from perfharness.runs.explain import explaining_folder
from perfharness.runs.files.inputs import Located
from perfharness.runs.files.journals import host_probe_of, journals_of
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, read_manifest
from perfharness.trace import open_trace


def stacks_of_stages(located: Located, read_as: ReadAs = AS_LAUNCHED) -> dict[str, list[Stack]]:
    """The stacks of the outermost stages of each process, by both names; none where nothing was sampled.

    Raises `ResultError` where a manifest cannot be read, `TraceError` where a trace cannot.
    """
    return {
        f"{name}: {path_text(path)}": stacks
        for name, analysis in _sampled(located, read_as)
        for path, stacks in stage_stacks(analysis).items()
    }


def _sampled(located: Located, read_as: ReadAs) -> Iterator[tuple[str, Analysis]]:
    """Every process of a run, or of a trace with its samples next to it, that was sampled, one at a time."""
    if located.trace is not None:
        path = located.trace
        if (recorded := host_probe_of(path)) is not None:
            trace = on_utc(open_trace(path, parents=journals_of(path).parents, with_details=False), None)
            yield located.name, Analysis(trace, read_as.options(), on_trace_clock(recorded, trace))
    for run_dir in located.runs:
        measured = read_manifest(run_dir)
        names = {record.folder: name for name, record in located.processes_of(run_dir, measured)}
        folder = explaining_folder(run_dir, measured) or run_dir
        manifest = measured if folder == run_dir else read_manifest(folder)
        traces = ProcessTraces(folder)
        for record in manifest.measured_processes:
            if record.folder in names and (recorded := traces.host_probe(record)) is not None:
                trace = on_utc(traces.open(record, with_details=False), machine_clock(manifest))
                options = read_as.options(manifest)
                yield names[record.folder], Analysis(trace, options, on_trace_clock(recorded, trace))
