"""Which processes of a run shared a GPU, and when: each trace's GPU work on the wall clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from perfharness.analysis.diagnosis.gpu.workload import OtherProcesses, busy_line
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.gpus import find_gpus
from perfharness.errors import TraceError
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.model.trace import Int64, Trace
from perfharness.runs.clocks import machine_clock, on_utc
from perfharness.runs.files.process_traces import ProcessTraces


@dataclass(frozen=True)
class _GpuUse:
    """When one process was at work on its GPU, in its trace's time, and the wall-clock time of that trace's 0."""

    start_ns: Int64
    end_ns: Int64
    origin_ns: int


class GpuSharing:
    """The GPU work of every process of a run.

    The work of a process is kept when its trace is analysed; where it is needed before, the trace is read for it.
    All are put on UTC by the same clock as their results.
    """

    def __init__(self, traces: ProcessTraces, manifest: RunManifest) -> None:
        self._traces = traces
        self._processes = manifest.measured_processes
        self._machine = machine_clock(manifest)
        self._use: dict[tuple[str, str], _GpuUse | str] = {}

    def others_of(self, process: ProcessRecord) -> Callable[[Trace], OtherProcesses]:
        """What finds when the other processes on this process's GPUs were at work, on the clock of its own trace.

        Their traces are read now, before that of the process itself: a trace is large, and one is held at a time.
        """
        mine = set(process.used_gpus)
        others = [
            other for other in self._processes if mine.intersection(other.used_gpus) and other.folder != process.folder
        ]
        shared = [uuid for uuid in process.used_gpus if any(uuid in other.used_gpus for other in others)]
        if len(shared) > 1:
            reason = f"what other processes did on the {len(shared)} GPUs that {process.folder} shares with them"
            return lambda _: OtherProcesses(None, len(others), f"{reason} is not separated by GPU")
        uses = [self._of(other, uuid) for uuid in shared for other in others]
        return partial(self._on_clock_of, process, shared, uses)

    def _on_clock_of(
        self, process: ProcessRecord, shared: list[str], others: list[_GpuUse | str], trace: Trace
    ) -> OtherProcesses:
        if not others:
            nothing = np.empty(0, dtype=np.int64)
            return OtherProcesses(BusyLine(nothing, nothing), 0)
        (uuid,) = shared
        mine = self._use[process.folder, uuid] = _use_of(process, uuid, trace)
        if isinstance(mine, str):
            return OtherProcesses(None, len(others), mine)
        starts, ends = [], []
        for use in others:
            if isinstance(use, str):
                return OtherProcesses(None, len(others), use)
            shift = use.origin_ns - mine.origin_ns
            starts.append(use.start_ns + shift)
            ends.append(use.end_ns + shift)
        busy = BusyLine(np.concatenate(starts), np.concatenate(ends))
        return OtherProcesses(busy, len(others), gpu_uuid=uuid.removeprefix("GPU-"))

    def _of(self, process: ProcessRecord, uuid: str) -> _GpuUse | str:
        if (process.folder, uuid) not in self._use:
            self._use[process.folder, uuid] = self._read(process, uuid)
        return self._use[process.folder, uuid]

    def _read(self, process: ProcessRecord, uuid: str) -> _GpuUse | str:
        if process.trace is None:
            return f"{_gpu_use_of(process)}: it left no trace"
        try:
            trace = on_utc(self._traces.open(process, with_details=False), self._machine)
        except TraceError:
            return f"{_gpu_use_of(process)}: its trace cannot be read"
        return _use_of(process, uuid, trace)


def _use_of(process: ProcessRecord, uuid: str, trace: Trace) -> _GpuUse | str:
    """When the process was at work on that GPU."""
    meta, operations = trace.meta, trace.operations
    who = _gpu_use_of(process)
    if meta.session_start_unix_ns is None:
        return f"{who}: its trace does not have its start time"
    if meta.gpu_coverage == "untraced":
        return f"{who}: {meta.gpu_coverage_reason}"
    gpus = find_gpus(operations, meta)
    mine = np.ones(len(operations), dtype=np.bool_)
    if len(gpus) > 1 or (len(gpus) and len(process.given_gpus) > 1):
        same = [place for place, device in enumerate(gpus.facts) if device.uuid == uuid.removeprefix("GPU-")]
        if not same:
            return f"{who}: it used several, and its trace does not identify them"
        mine = gpus.of == same[0]
    line = busy_line(operations, mine)
    return _GpuUse(line.start, line.end, meta.session_start_unix_ns)


def _gpu_use_of(process: ProcessRecord) -> str:
    return f"what {process.folder} did on the GPU"
