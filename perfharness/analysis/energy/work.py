"""What a process did on its GPU, on UTC: busy times by stage, and its batches; all that energy needs of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.attribution import stage_of_calls
from perfharness.analysis.throughput import loop_window
from perfharness.analysis.timeline import merge
from perfharness.model.result import BatchLoop, Float64, GpuWork, path_text
from perfharness.model.trace import Bool, Int64

OUTSIDE = "outside of stages"
"""Traced GPU work that no stage started."""

Window = tuple[int, int]
"""Start and end, UTC ns."""

MAX_CLOCK_ERROR_NS = 25_000_000
"""A quarter of an update of the slowest sensor. One that is the same all the time is taken for the sensor's lag."""


def gpu_work(analysis: Analysis) -> GpuWork:
    """Give each GPU operation to the innermost stage that its call was made in. A stage without any has no times."""
    trace, stages, launches = analysis.trace, analysis.stages, analysis.launches
    utc = trace.meta.session_start_unix_ns
    if utc is None:
        return GpuWork(reason="the trace has no UTC start time, so it cannot be aligned with the sensors")
    if trace.meta.clock is not None and trace.meta.clock.error_ns > MAX_CLOCK_ERROR_NS:
        off = trace.meta.clock.error_ns / 1e6
        return GpuWork(
            reason=f"the trace's clock may be {off:.0f} ms off the sensors', too much to lay them side by side"
        )
    if trace.meta.gpu_coverage == "untraced":
        return GpuWork(reason=trace.meta.gpu_coverage_reason)
    if len(stages) and not analysis.table.gpu_known[stages.index].all():
        return GpuWork(reason="the trace lost GPU work of some ranges (see the findings)")
    paths = stages.paths
    names = [path_text(paths.names(path)) for path in range(len(paths))]
    row = stage_of_calls(stages, trace.api, launches.call)
    group = np.full(len(trace.operations), len(paths), dtype=np.int64)
    inside = row >= 0
    group[launches.operation[inside]] = paths.code[row[inside]]
    busy = []
    by_group = np.argsort(group, kind="stable")
    bounds = np.r_[0, np.cumsum(np.bincount(group, minlength=len(paths) + 1))]
    for number in range(len(paths) + 1):
        mine = by_group[bounds[number] : bounds[number + 1]]
        start, end = merge(trace.operations.start_ns[mine], trace.operations.end_ns[mine])
        busy.append((start + utc, end + utc))
    return GpuWork((*names, OUTSIDE), tuple(busy))


@dataclass(frozen=True)
class Batches:
    """The outermost batches of a process in order of start, UTC ns.

    `kept` are those in the statistics: neither warm-up nor, where that was asked for, throttled.
    """

    start_ns: Int64
    end_ns: Int64
    items: Float64
    kept: Bool
    warmup: Bool
    windows: tuple[Window, ...] = ()
    """The loops' own windows, those of the throughput; merged where they overlap, pauses between loops left out."""

    @classmethod
    def of(cls, loops: list[BatchLoop]) -> Batches:
        """All loops of a process together."""
        names = ("start_ns", "end_ns", "items", "warmup", "only_warmup")
        kinds = (np.int64, np.int64, np.float64, np.bool_, np.bool_)
        start, end, items, excluded, warmup = (
            np.concatenate([np.empty(0, dtype=kind), *(getattr(loop, name) for loop in loops)])
            for name, kind in zip(names, kinds, strict=True)
        )
        order = np.argsort(start, kind="stable")
        windows = [window for loop in loops if (window := loop_window(loop)) is not None]
        return cls(start[order], end[order], items[order], ~excluded[order], warmup[order], merged(windows))

    @property
    def window(self) -> Window | None:
        """From the start of the first of the windows to the end of the last; None where there is none."""
        return union_window(list(self.windows))

    def counts(self, windows: Sequence[Window]) -> tuple[int, float | None]:
        """Batches that begin in these windows, excluded ones too, for their energy is in it; items, None if unknown."""
        begins = np.zeros_like(self.kept)
        for start, end in windows:
            begins |= (self.start_ns >= start) & (self.start_ns < end)
        count, items = int(begins.sum()), float(self.items[begins].sum())
        return count, None if np.isnan(items) or not count else items


@dataclass(frozen=True)
class MeasuredProcess:
    """One process of a run, as the sensors' side needs it.

    `gpu_uuid` is what it was given, perhaps a MIG instance; `sensor_uuid` the whole GPU, where power and clocks are.
    `lifetime` is from its start to its end, UTC ns, where known. `reason`: why its times are not on UTC.
    """

    folder: str
    gpu_uuid: str | None
    sensor_uuid: str | None
    batches: Batches
    work: GpuWork
    lifetime: tuple[int, int] | None
    reason: str | None = None

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of its loops on UTC."""
        return () if self.reason is not None else self.batches.windows

    @property
    def window(self) -> Window | None:
        """From the first to the last of them, or None."""
        return union_window(list(self.windows))


def merged(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Their union: in order, and neither overlapping nor touching."""
    columns = np.asarray(windows, dtype=np.int64).reshape(-1, 2)
    start, end = merge(columns[:, 0], columns[:, 1])
    return tuple(zip(start.tolist(), end.tolist(), strict=True))


def union_window(windows: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """From the earliest start to the latest end of those that there are."""
    known = [window for window in windows if window is not None]
    return (min(start for start, _ in known), max(end for _, end in known)) if known else None


def no_window(processes: list[MeasuredProcess]) -> str:
    """Why there is no measured window."""
    return next((process.reason for process in processes if process.reason), "no batch is left without the warm-up")
