"""A process's work on its GPU, on UTC: busy times by stage, and its batches; the input of the energy account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.stages.throughput import loop_window
from perfharness.analysis.stages.times import stage_of_calls
from perfharness.analysis.timeline.busy import BusyLine, Window
from perfharness.analysis.timeline.gpus import find_gpus
from perfharness.analysis.timeline.grouping import rows_by_code
from perfharness.model.columns import Bool, Float64, Int64
from perfharness.model.result import BatchLoop, GpuWork, path_text

OUTSIDE = "outside of stages"
"""Traced GPU work outside all stages."""

MAX_CLOCK_ERROR_NS = 25_000_000
"""A quarter of an update of the slowest sensor. A constant clock error looks like the sensor's lag."""


def gpu_work(analysis: Analysis, uuids: Sequence[str] = ()) -> tuple[GpuWork, ...]:
    """Busy times of the process's GPUs (UUIDs as NVML writes them) by stage; with fewer than two, all work in one. An
    operation belongs to the innermost stage around its call.
    """
    trace = analysis.trace
    reason = _unknown(analysis)
    if reason is None and len(uuids) < 2:
        return (_work_of(analysis, np.ones(len(trace.operations), dtype=np.bool_)),)
    place = np.empty(0, dtype=np.int64)
    if reason is None:
        gpus = find_gpus(trace.operations, trace.meta)
        bare = [uuid.partition("-")[2] for uuid in uuids]
        of_gpu = [bare.index(gpu.uuid) if gpu.uuid in bare else -1 for gpu in gpus.facts]
        place = np.asarray(of_gpu, dtype=np.int64)[gpus.of]
        if (place < 0).any():
            reason = "the trace does not say on which of its GPUs some of the work ran"
    if reason is not None:
        return (GpuWork(reason=reason),) * max(1, len(uuids))
    return tuple(_work_of(analysis, place == number) for number in range(len(uuids)))


def _unknown(analysis: Analysis) -> str | None:
    """Reason why the work is unknown."""
    meta, stages = analysis.trace.meta, analysis.stages
    if meta.session_start_unix_ns is None:
        return "the trace has no UTC start time, so it cannot be aligned with the sensors"
    if meta.clock is not None and meta.clock.error_ns > MAX_CLOCK_ERROR_NS:
        off = meta.clock.error_ns / 1e6
        return f"the trace's clock may be {off:.0f} ms off the sensors' clock, too much to align them"
    if meta.gpu_coverage == "untraced":
        return meta.gpu_coverage_reason or "the GPU was not traced"
    if len(stages) and not analysis.table.gpu_known[stages.index].all():
        return "the trace lost GPU work of some ranges (see the findings)"
    return None


def _work_of(analysis: Analysis, chosen: Bool) -> GpuWork:
    """Busy times of the chosen operations by stage."""
    trace, stages, launches = analysis.trace, analysis.stages, analysis.launches
    utc = trace.meta.session_start_unix_ns or 0
    paths = stages.paths
    names = [path_text(paths.names(path)) for path in range(len(paths))]
    row = stage_of_calls(stages, trace.api, launches.call)
    group = np.full(len(trace.operations), len(paths), dtype=np.int64)
    inside = row >= 0
    group[launches.operation[inside]] = paths.code[row[inside]]
    of_stages = rows_by_code(np.append(group, len(paths)), np.append(chosen, False))
    lines = [BusyLine(trace.operations.start_ns[mine], trace.operations.end_ns[mine]) for mine in of_stages]
    return GpuWork((*names, OUTSIDE), tuple((line.start + utc, line.end + utc) for line in lines))


@dataclass(frozen=True)
class Batches:
    """The outermost batches of a process, ordered by start, UTC ns."""

    start_ns: Int64
    end_ns: Int64
    items: Float64
    warmup: Bool
    windows: tuple[Window, ...] = ()
    """Windows of the loops, as for throughput; merged if they overlap, without pauses between loops."""

    @classmethod
    def of(cls, loops: list[BatchLoop]) -> Batches:
        """Join all loops of a process."""
        names = ("start_ns", "end_ns", "items", "warmup")
        kinds = (np.int64, np.int64, np.float64, np.bool_)
        start, end, items, warmup = (
            np.concatenate([np.empty(0, dtype=kind), *(getattr(loop, name) for loop in loops)])
            for name, kind in zip(names, kinds, strict=True)
        )
        order = np.argsort(start, kind="stable")
        windows = [window for loop in loops if (window := loop_window(loop)) is not None]
        return cls(start[order], end[order], items[order], warmup[order], merged(windows))

    def counts(self, windows: Sequence[Window]) -> tuple[int, float | None]:
        """Batches that begin in these windows, including warm-up, whose energy is included; items, None if unknown."""
        begins = np.zeros_like(self.warmup)
        for start, end in windows:
            begins |= (self.start_ns >= start) & (self.start_ns < end)
        count, items = int(begins.sum()), float(self.items[begins].sum())
        return count, None if np.isnan(items) or not count else items


@dataclass(frozen=True)
class OnGpu:
    """A process's work on one GPU. `uuid`: as assigned, possibly a MIG instance; `sensor_uuid`: the whole GPU."""

    uuid: str
    sensor_uuid: str
    work: GpuWork


@dataclass(frozen=True)
class MeasuredProcess:
    """One process of a run, with the data to attribute sensor readings. `lifetime`: start and end, UTC ns. `reason`:
    why its times are not on UTC. `max_rss_bytes`: peak resident memory, from the kernel.
    """

    folder: str
    gpus: tuple[OnGpu, ...]
    batches: Batches
    lifetime: tuple[int, int] | None
    reason: str | None = None
    max_rss_bytes: int | None = None

    def on(self, uuid: str) -> MeasuredProcess | None:
        """The process restricted to this GPU or MIG instance; None if it was not assigned to it."""
        mine = tuple(gpu for gpu in self.gpus if uuid in (gpu.uuid, gpu.sensor_uuid))
        return replace(self, gpus=mine) if mine else None

    @property
    def work(self) -> GpuWork:
        """Work on all of its GPUs."""
        works = [gpu.work for gpu in self.gpus]
        if len(works) == 1:
            return works[0]
        reason = next((work.reason for work in works if work.reason is not None), None)
        stages = tuple(name for work in works for name in work.stages)
        return GpuWork(stages, tuple(spans for work in works for spans in work.busy), reason)

    @property
    def windows(self) -> tuple[Window, ...]:
        """Windows of its loops on UTC."""
        return () if self.reason is not None else self.batches.windows

    @property
    def window(self) -> Window | None:
        """From the first to the last window, or None."""
        return union_window(list(self.windows))


def merged(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Union of the windows, in order, neither overlapping nor touching."""
    line = BusyLine(*np.asarray(windows, dtype=np.int64).reshape(-1, 2).T)
    return tuple(zip(line.start.tolist(), line.end.tolist(), strict=True))


def union_window(windows: Sequence[Window | None]) -> Window | None:
    """From the earliest start to the latest end of the known windows."""
    known = [window for window in windows if window is not None]
    return (min(start for start, _ in known), max(end for _, end in known)) if known else None


def no_window(processes: Sequence[MeasuredProcess]) -> str:
    """Reason why there is no measured window."""
    return next((process.reason for process in processes if process.reason), "no batches remain after the warm-up")
