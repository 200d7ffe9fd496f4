"""Divide the unexplained time of segments by samples of threads, as proportions with the number of samples.

A sample does not show when an activity began or ended, so samples only divide time that no event explains.
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
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.activity import CODES, Activity
from perfharness.model.columns import Bool, Columns, Float64, Int64
from perfharness.model.host_samples import Frame, HostSamples, HostState

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
"""Largest distance between a sample's time and its range: the longest time the sampler takes for a thread."""
MIN_SAMPLES = 10
"""Fewest samples of a stage to divide its time."""


@dataclass(frozen=True)
class SampleTimes(Columns):
    """One row per sample in the painted ranges (two if it both ran and waited for a CPU). `sample`: row in `samples`.
    `row`, `stage`, `batch`, `activity`: as in `Segments`. `is_recorded`: the activity comes from an event. `line`:
    index in `lines` of the innermost line outside libraries, -1 without a stack. `ns`: time it stands for. `count`:
    fraction of a sample.
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

    def sum_by(self, *columns: str) -> Sums:
        """Time and number of samples per combination of values, in order of first appearance."""
        return sum_by({column: getattr(self, column) for column in columns}, self.ns, self.count)


def sample_times(analysis: Analysis, segments: Segments) -> SampleTimes | None:
    """Assign the samples of threads to segments; None without samples."""
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
    """The innermost range of each sample as a row of the stage table, -1 for none. The recorder's stack, read with the
    sample, gives the stage, and the clock the range; without such a stack, the clock gives both.
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
    """Path code of each recorder stack, or of its longest prefix that is a path."""
    codes: dict[tuple[str, ...], int] = {}
    for code in range(len(stages.paths)):
        codes.setdefault(tuple(name.removesuffix(STAGE_SUFFIX) for name in stages.paths.names(code)), code)
    found = [
        next((codes[path[:length]] for length in range(len(path), 1, -1) if path[:length] in codes), -1)
        for path in samples.stage_paths
    ]
    return np.asarray(found, dtype=np.int64)


def _nearest_range(stages: StageTable, rows: Int64, time_ns: Int64) -> Int64:
    """The range, of one stage and thread, around each time or within `BOUNDARY_NS` of it; -1 for none."""
    rows = rows[np.argsort(stages.start_ns[rows], kind="stable")]
    start, end = stages.start_ns[rows], stages.end_ns[rows]
    before = np.searchsorted(start, time_ns, side="right") - 1
    after = np.minimum(before + 1, len(rows) - 1)
    since = np.where(before >= 0, np.maximum(time_ns - end[before], 0), np.iinfo(np.int64).max)
    until = np.where(before < len(rows) - 1, start[after] - time_ns, np.iinfo(np.int64).max)
    nearest = np.where(since <= until, before, after)
    return np.where(np.minimum(since, until) <= BOUNDARY_NS, rows[nearest], -1)


def _lines(samples: HostSamples) -> tuple[Int64, list[Frame]]:
    """Line of each stack as an index of the list; the last entry is for samples without a stack."""
    places: dict[Frame, int] = {}
    line = np.full(len(samples.stacks) + 1, -1, dtype=np.int64)
    for stack in distinct(samples.stack):
        if stack >= 0 and (frames := frames_of(samples, stack)):
            line[stack] = places.setdefault(own_frame(frames), len(places))
    return line, list(places)


def _shared_out(table: SampleTimes) -> SampleTimes:
    """Divide samples of a ready thread into running and waiting for a CPU, by the counters of the system, because its
    state shows both alike.
    """
    samples, at = table.samples, table.sample
    on_cpu, runnable = samples.on_cpu_ns[at].astype(np.float64), samples.runnable_ns[at].astype(np.float64)
    is_ready = np.isin(samples.state[at], READY) & np.isin(table.activity, [CODES[OF_STATE[one]] for one in READY])
    is_ready &= ~table.is_recorded & (on_cpu >= 0) & (runnable >= 0) & (on_cpu + runnable > 0)
    ran = np.where(is_ready, on_cpu / np.maximum(on_cpu + runnable, 1.0), 1.0)
    both = table.select(np.r_[np.arange(len(table)), np.flatnonzero(ran < 1)])
    part = np.r_[ran, 1 - ran[ran < 1]]
    activity = np.where(is_ready, CODES[Activity.COMPUTE], table.activity)
    activity = np.r_[activity, np.full(len(both) - len(table), CODES[Activity.NO_CPU])]
    return replace(both, activity=activity, ns=both.ns * part, count=both.count * part).select(part > 0)
