"""The sampled stacks of a run's processes: from its profiling pass, where it has one."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.host_samples.stacks import Stack, stage_stacks
from perfharness.model.result import path_text
from perfharness.runs.clocks import machine_clock
from perfharness.runs.explain import explaining_folder
from perfharness.runs.files.inputs import Located
from perfharness.runs.files.process_traces import analysis_on_utc, bare_trace, traces_of
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs, read_manifest


def stacks_of_stages(located: Located, read_as: ReadAs = AS_LAUNCHED) -> dict[str, list[Stack]]:
    """The stacks of the outermost stages of each process, by both names; none where nothing was sampled.

    Raises `ResultError` where a manifest cannot be read, `TraceError` where a trace cannot.
    """
    return {
        f"{name}: {path_text(path)}": stacks
        for name, analysis in _analyses(located, read_as)
        if analysis.host_probe is not None
        for path, stacks in stage_stacks(analysis).items()
    }


def _analyses(located: Located, read_as: ReadAs) -> Iterator[tuple[str, Analysis]]:
    """Every process of a run, or of a trace, one at a time."""
    if located.trace is not None:
        yield located.name, analysis_on_utc(bare_trace(located.trace), read_as.options(), None, with_details=False)
    for run_dir in located.runs:
        measured = read_manifest(run_dir)
        folder = explaining_folder(run_dir, measured) or run_dir
        manifest = measured if folder == run_dir else read_manifest(folder)
        options, clock, traces = read_as.options(manifest), machine_clock(manifest), traces_of(folder, manifest)
        for record in measured.measured_processes:
            source = traces.get(record.folder)
            if located.names_process(record.folder) and source is not None and source.path is not None:
                name = located.name_in(run_dir, record)
                yield name, analysis_on_utc(source, options, clock, with_details=False)
