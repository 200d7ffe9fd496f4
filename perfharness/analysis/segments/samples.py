"""What samples of threads show of the segments: activities and lines, as proportions with the number of samples.

A sample does not say when something began and ended. So samples only share out the time that no event explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.host_samples.awaits import with_awaits
from perfharness.analysis.host_samples.compilers import compilers_of_stacks
from perfharness.analysis.host_samples.frames import frames_of, own_frame
from perfharness.analysis.segments.events import activities
from perfharness.analysis.segments.paint import Segments, Sums, sum_by
from perfharness.analysis.stages.roles import STAGE_SUFFIX, StageTable
from perfharness.analysis.timeline.grouping import distinct, select
from perfharness.model.activity import CODES, Activity
from perfharness.model.host_samples import Frame, HostSamples, HostState
from perfharness.model.result import Float64
from perfharness.model.trace import Bool, Int64

OF_STATE: Mapping[int, Activity] = {
    HostState.RUNNING: Activity.COMPUTE,
    HostState.RUNNABLE: Activity.NO_CPU,
    HostState.GIL: Activity.GIL,
    HostState.LOCK: Activity.LOCK,
    HostState.SLEEP: Activity.SLEEP,
    HostState.FILE: Activity.FILE,
    HostState.SOCKET: Activity.NETWORK,
    HostState.LOOPBACK: Activity.NETWORK,
    HostState.PROCESS: Activity.PROCESS,
    HostState.PIPE: Activity.PROCESS,
    HostState.DRIVER: Activity.SYNC,
    HostState.OTHER: Activity.OTHER,
}
READY = (HostState.RUNNING, HostState.RUNNABLE)
UNKNOWN = CODES[Activity.UNKNOWN]
BOUNDARY_NS = 100_000
"""A sample's time and that of ranges may be this far apart: the sampler takes that long for a thread, at most."""
MIN_SAMPLES = 10
"""With fewer samples of a stage, its time is not shared out."""


@dataclass(frozen=True)
class SampleTimes:
    """One row per sample in the painted ranges (two where it ran and waited for a CPU). `sample` is its row in
    `samples`; `row`, `stage`, `batch` and `activity` are as in `Segments`. `is_recorded`: an event says what the thread
    did. `line` is a place in `lines`, the innermost line outside of libraries, -1: no stack. `ns` is the time that it
    stands for, `count` the part of a sample that it is.
    """

    sample: Int64
    row: Int64
    stage: Int64
    batch: Int64
    activity: Int64
    is_recorded: Bool
    line: Int64
    ns: Float64
    count: Float64
    samples: HostSamples
    lines: list[Frame]

    def __len__(self) -> int:
        return len(self.sample)

    def sum_by(self, *columns: str) -> Sums:
        """Time and number of the samples with each combination of values, in order of first appearance."""
        return sum_by({column: getattr(self, column) for column in columns}, self.ns, self.count)

    def where(self, chosen: Bool) -> SampleTimes:
        """The chosen rows."""
        return select(self, chosen)


def sample_times(analysis: Analysis, segments: Segments) -> SampleTimes | None:
    """Lay the samples of threads onto segments; None: nothing was sampled."""
    if analysis.host_probe is None:
        return None
    samples, stages = with_awaits(analysis.host_probe.samples), analysis.stages
    row = _innermost_ranges(samples, stages, segments)
    found = np.flatnonzero(np.isin(row, segments.row))
    row = row[found]
    segment = segments.at("row", row, samples.time_ns[found])
    recorded = np.append(segments.activity, UNKNOWN)[segment]
    is_recorded = recorded != UNKNOWN
    shown = activities(samples.state, OF_STATE)
    shown[shown < 0] = UNKNOWN
    shown[compilers_of_stacks(samples.frames, samples.stacks)[samples.stack] >= 0] = CODES[Activity.COMPILE]
    line, lines = _lines(samples)
    table = SampleTimes(
        sample=found,
        row=row,
        stage=np.asarray(stages.paths.code, dtype=np.int64)[row],
        batch=np.asarray(analysis.stage_times.outer_batch, dtype=np.int64)[row],
        activity=np.where(is_recorded, recorded, shown[found]),
        is_recorded=is_recorded,
        line=line[samples.stack[found]],
        ns=samples.length_ns[found].astype(np.float64),
        count=np.ones(len(found)),
        samples=samples,
        lines=lines,
    )
    return _shared_out(table)


def _innermost_ranges(samples: HostSamples, stages: StageTable, segments: Segments) -> Int64:
    """The innermost range of each sample, a row of the stage table; -1: none. The recorder's own stack, read with the
    sample, decides which stage it is in, the clock in which of its ranges; without such a stack the clock alone
    decides.
    """
    by_clock = segments.at("thread", samples.thread, samples.time_ns)
    row = np.append(np.asarray(segments.row, dtype=np.int64), -1)[by_clock]
    path = np.append(_paths_of_stacks(samples, stages), -1)[samples.stage]
    for code in distinct(path[path >= 0]):
        rows = np.flatnonzero(stages.paths.code == code)
        for thread in distinct(stages.thread[rows]):
            chosen = np.flatnonzero((path == code) & (samples.thread == thread))
            row[chosen] = _nearest_range(stages, rows[stages.thread[rows] == thread], samples.time_ns[chosen])
    return row


def _paths_of_stacks(samples: HostSamples, stages: StageTable) -> Int64:
    """The code of the path that each stack of a recorder's ranges is, or of the longest part of it that is one."""
    codes: dict[tuple[str, ...], int] = {}
    for code in range(len(stages.paths)):
        codes.setdefault(tuple(name.removesuffix(STAGE_SUFFIX) for name in stages.paths.names(code)), code)
    found = [
        next((codes[path[:length]] for length in range(len(path), 1, -1) if path[:length] in codes), -1)
        for path in samples.stage_paths
    ]
    return np.asarray(found, dtype=np.int64)


def _nearest_range(stages: StageTable, rows: Int64, time_ns: Int64) -> Int64:
    """Of ranges of one stage and thread, the one around each moment, or less than `BOUNDARY_NS` from it; -1: none."""
    rows = rows[np.argsort(stages.start_ns[rows], kind="stable")]
    start, end = stages.start_ns[rows], stages.end_ns[rows]
    before = np.searchsorted(start, time_ns, side="right") - 1
    after = np.minimum(before + 1, len(rows) - 1)
    since = np.where(before >= 0, np.maximum(time_ns - end[before], 0), np.iinfo(np.int64).max)
    until = np.where(before < len(rows) - 1, start[after] - time_ns, np.iinfo(np.int64).max)
    nearest = np.where(since <= until, before, after)
    return np.where(np.minimum(since, until) <= BOUNDARY_NS, rows[nearest], -1)


def _lines(samples: HostSamples) -> tuple[Int64, list[Frame]]:
    """The line of each stack, a place in the list, with a last entry for samples without one."""
    places: dict[Frame, int] = {}
    line = np.full(len(samples.stacks) + 1, -1, dtype=np.int64)
    for stack in distinct(samples.stack):
        if stack >= 0 and (frames := frames_of(samples, stack)):
            line[stack] = places.setdefault(own_frame(frames), len(places))
    return line, list(places)


def _shared_out(table: SampleTimes) -> SampleTimes:
    """Share samples of a thread that could run out by how long it ran, and how long it waited for a CPU: the system
    does not show at one moment which of them it did, but counts both.
    """
    samples, at = table.samples, table.sample
    on_cpu, runnable = samples.on_cpu_ns[at].astype(np.float64), samples.runnable_ns[at].astype(np.float64)
    is_ready = np.isin(samples.state[at], READY) & np.isin(table.activity, [CODES[OF_STATE[one]] for one in READY])
    is_ready &= ~table.is_recorded & (on_cpu >= 0) & (runnable >= 0) & (on_cpu + runnable > 0)
    ran = np.where(is_ready, on_cpu / np.maximum(on_cpu + runnable, 1.0), 1.0)
    both = select(table, np.r_[np.arange(len(table)), np.flatnonzero(ran < 1)])
    part = np.r_[ran, 1 - ran[ran < 1]]
    activity = np.where(is_ready, CODES[Activity.COMPUTE], table.activity)
    activity = np.r_[activity, np.full(len(both) - len(table), CODES[Activity.NO_CPU])]
    return replace(both, activity=activity, ns=both.ns * part, count=both.count * part).where(part > 0)
