"""The sampled stacks of a run's processes: from its explaining pass, where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.flame import spans_of_stages
from perfharness.analysis.host_profile import Spans, on_trace_clock
from perfharness.model.host_samples import HostProbe
from perfharness.model.telemetry import ClockTieRecord
from perfharness.runs.clocks import machine_clock, on_utc
from perfharness.runs.explain import explaining_folder
from perfharness.runs.inputs import Located
from perfharness.runs.journals import host_probe_of, journals_of
from perfharness.runs.run_folder import AS_LAUNCHED, ReadAs, read_manifest
from perfharness.trace import open_trace


@dataclass(frozen=True)
class SampledProcess:
    """A process whose threads were sampled: its samples on its trace's clock, and the ranges of its stages."""

    name: str
    probe: HostProbe
    stages: list[Spans]


def sampled_processes(located: Located, read_as: ReadAs = AS_LAUNCHED) -> Iterator[SampledProcess]:
    """Every process of a run, or of a trace with its samples next to it, that was sampled, one at a time.

    Raises `ResultError` where a manifest cannot be read, `TraceError` where a trace cannot.
    """
    if located.trace is not None:
        yield from _sampled(located.name, located.trace, read_as.options())
    for run_dir in located.runs:
        measured = read_manifest(run_dir)
        names = {record.folder: name for name, record in located.processes_of(run_dir, measured)}
        folder = explaining_folder(run_dir, measured) or run_dir
        manifest = measured if folder == run_dir else read_manifest(folder)
        for record in manifest.processes:
            if record.folder in names and record.trace is not None:
                path = folder / record.folder / record.trace
                yield from _sampled(names[record.folder], path, read_as.options(manifest), machine_clock(manifest))


def _sampled(
    name: str, path: Path, options: AnalysisOptions, machine: ClockTieRecord | None = None
) -> Iterator[SampledProcess]:
    recorded = host_probe_of(path)
    if recorded is not None:
        trace = on_utc(open_trace(path, parents=journals_of(path).parents, with_details=False), machine)
        stages = spans_of_stages(Analysis(trace, options))
        yield SampledProcess(name, on_trace_clock(recorded, trace), stages)
