"""Find when processes of a run used the same GPU, from the GPU work of each trace on UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.diagnosis.gpu.workload import OtherProcesses, busy_line
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.gpus import find_gpus
from perfharness.errors import TraceError
from perfharness.model.columns import Int64
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.model.trace import Trace
from perfharness.runs.files.process_traces import TraceSource


@dataclass(frozen=True)
class GpuWork:
    """Busy times of a process on a GPU, on the clock of its trace; `origin_ns` is the UTC of 0."""

    start_ns: Int64
    end_ns: Int64
    origin_ns: int


class GpuSharing:
    """GPU work of all processes of a run, cached per process and GPU."""

    def __init__(self, traces: Mapping[str, TraceSource], manifest: RunManifest) -> None:
        self._traces = traces
        self._processes = manifest.measured_processes
        self._work: dict[tuple[str, str], GpuWork | str] = {}

    def work_of_others(self, process: ProcessRecord) -> list[GpuWork | str]:
        """Work of other processes on the GPU shared with a process, or why it is unknown.

        Call this before the trace of the process is read, because only one trace fits into memory.
        """
        others, shared = self._others(process), self._shared(process)
        if len(shared) > 1:
            reason = f"the work of other processes on {len(shared)} GPUs shared with {process.folder}"
            return [f"{reason} is not separated by GPU"] * len(others)
        return [self._of(other, uuid) for uuid in shared for other in others]

    def others(self, process: ProcessRecord, trace: Trace, works: list[GpuWork | str]) -> OtherProcesses:
        """Busy times of the other processes (`work_of_others`), on the clock of this trace."""
        unknown = next((work for work in works if isinstance(work, str)), None)
        if unknown is not None:
            return OtherProcesses(None, len(works), unknown)
        if not works:
            nothing = np.empty(0, dtype=np.int64)
            return OtherProcesses(BusyLine(nothing, nothing), 0)
        (uuid,) = self._shared(process)
        mine = self._work[process.folder, uuid] = _work_on(process, uuid, trace)
        if isinstance(mine, str):
            return OtherProcesses(None, len(works), mine)
        known = [(work, work.origin_ns - mine.origin_ns) for work in works if isinstance(work, GpuWork)]
        starts = np.concatenate([work.start_ns + shift for work, shift in known])
        ends = np.concatenate([work.end_ns + shift for work, shift in known])
        return OtherProcesses(BusyLine(starts, ends), len(works), gpu_uuid=uuid.removeprefix("GPU-"))

    def _others(self, process: ProcessRecord) -> list[ProcessRecord]:
        mine = set(process.used_gpus)
        return [one for one in self._processes if one.folder != process.folder and mine.intersection(one.used_gpus)]

    def _shared(self, process: ProcessRecord) -> list[str]:
        used = {uuid for other in self._others(process) for uuid in other.used_gpus}
        return [uuid for uuid in process.used_gpus if uuid in used]

    def _of(self, process: ProcessRecord, uuid: str) -> GpuWork | str:
        key, source = (process.folder, uuid), self._traces[process.folder]
        if source.path is None:
            return f"{process.folder} left no trace"
        if key not in self._work:
            try:
                self._work[key] = _work_on(process, uuid, source.open(with_details=False))
            except TraceError:
                self._work[key] = f"the trace of {process.folder} cannot be read"
        return self._work[key]


def _work_on(process: ProcessRecord, uuid: str, trace: Trace) -> GpuWork | str:
    """Work of the process on a GPU, or why it is unknown."""
    meta, operations = trace.meta, trace.operations
    if meta.session_start_unix_ns is None:
        return f"the trace of {process.folder} has no start time"
    if meta.gpu_coverage == "untraced":
        return f"{process.folder}: {meta.gpu_coverage_reason}"
    gpus = find_gpus(operations, meta)
    mine = np.ones(len(operations), dtype=np.bool_)
    if len(gpus) > 1 or (len(gpus) and len(process.given_gpus) > 1):
        same = [place for place, device in enumerate(gpus.facts) if device.uuid == uuid.removeprefix("GPU-")]
        if not same:
            return f"the trace of {process.folder} does not identify its GPUs"
        mine = gpus.of == same[0]
    line = busy_line(operations, mine)
    return GpuWork(line.start, line.end, meta.session_start_unix_ns)
