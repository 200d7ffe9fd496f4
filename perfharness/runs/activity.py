"""A run's telemetry and what its processes were doing meanwhile, for the pictures of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perfharness.analysis.activity import ProcessActivity, process_activity
from perfharness.analysis.trace_clock import tie_trace_clock
from perfharness.errors import ResultError
from perfharness.model.telemetry import TELEMETRY_NAME, SampleLog
from perfharness.runs.clocks import machine_clock
from perfharness.runs.run import open_run
from perfharness.telemetry.store import read_sample_log


@dataclass(frozen=True)
class RunTelemetry:
    """`activities` has the folder names of the processes as its keys; those without a readable trace are missing."""

    title: str
    log: SampleLog
    activities: dict[str, ProcessActivity] = field(default_factory=dict)


def read_telemetry(folder: Path) -> RunTelemetry:
    """Of a run folder. Raises `ResultError` where there is no telemetry, or no manifest."""
    log = read_sample_log(folder / TELEMETRY_NAME)
    run = open_run(folder)
    if run.manifest is None:
        raise ResultError(f"{folder} holds no manifest, so it is not known which process ran on which GPU")
    clock = machine_clock(run.manifest)
    activities = {}
    for process in run.processes:
        if process.problem() is None and (analysis := process.analysis) is not None:
            tied = tie_trace_clock(analysis.trace, clock)
            if tied is not None:
                found = process_activity(analysis.stages, analysis.stage_times, tied)
                if found is not None:
                    activities[process.name] = found
        process.release()
    return RunTelemetry(f"{Path(run.manifest.script).name}  {run.manifest.created}", log, activities)
