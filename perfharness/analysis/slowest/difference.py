"""Difference of one batch from the typical one, by stage and activity. The parts add up to the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments import paint, sample_times
from perfharness.analysis.segments.events import Calls
from perfharness.analysis.segments.samples import MIN_SAMPLES, UNKNOWN
from perfharness.analysis.slowest import results
from perfharness.analysis.stages.roles import MANY_RARE
from perfharness.analysis.timeline.busy import expand
from perfharness.analysis.timeline.grouping import group_rows, sum_by_code
from perfharness.model.activity import ACTIVITIES
from perfharness.model.columns import Float64, Int64
from perfharness.model.result import path_text
from perfharness.model.trace import GpuOperationKind
from perfharness.model.units import NS_PER_MS

MIN_NS = 1_000.0
MIN_SHARE = 0.02
"""Least share of the difference to be named."""
EXPLAINED_SHARE = 0.5
SPREADS = 8.0
"""Spreads beyond which a difference is unusual; 4 % of 300 batches with exponential noise have a larger one."""
NORMAL_QUARTILE = 0.6745
MIN_SAMPLES_OF_PART = 3
MAX_OPERATIONS = 10

Key = tuple[int, str]
"""Path code of a stage (-1 for outside the batch), and an activity or another reason."""


@dataclass(frozen=True)
class _Side:
    """One part in the slow batch and in the typical one, ns."""

    slow: float
    typical: float
    usual: float
    samples: float | None = None


class Divided:
    """Batches of one path, by stage and activity. `outside_ns`: of their requests, outside of them, by reason."""

    def __init__(self, analysis: Analysis, rows: Int64, outside_ns: Mapping[str, Float64]) -> None:
        self._analysis, self._rows, self._outside = analysis, rows, outside_ns
        self._shown = _without_ids(analysis, rows)
        segments = paint(analysis, rows)
        samples = sample_times(analysis, segments)
        self._segments = replace(segments, stage=self._shown[segments.stage])
        self._samples = None if samples is None else replace(samples, stage=self._shown[samples.stage])
        self._batch_path = int(analysis.stages.paths.code[rows[0]])
        sums = self._segments.sum_by("batch", "stage", "activity")
        keys = group_rows(sums.keys["stage"], sums.keys["activity"])
        stage, activity = sums.keys["stage"][keys.first].tolist(), sums.keys["activity"][keys.first].tolist()
        self._keys: list[Key] = [(code, ACTIVITIES[what].value) for code, what in zip(stage, activity, strict=True)]
        self._ns = np.zeros((len(rows), len(keys)))
        self._ns[np.searchsorted(rows, sums.keys["batch"]), keys.code] = sums.ns
        self._work = _Operations(analysis, rows)

    def parts(self, row: int, typical: Int64, difference_ns: float) -> tuple[list[results.Part], float]:
        """Parts of a batch's difference large enough to be named, and the sum of the others, ns."""
        slow, others = int(np.searchsorted(self._rows, row)), np.searchsorted(self._rows, typical)
        named, small_ns = [], 0.0
        for key, side in self._sides(slow, others):
            ns = side.slow - side.typical
            floor = max(side.usual, MIN_NS, MIN_SHARE * abs(difference_ns))
            if abs(ns) > floor and (not side.samples or ns < 0 or side.samples >= MIN_SAMPLES_OF_PART):
                named.append(self._part(key, side, row, typical))
            else:
                small_ns += ns
        return sorted(named, key=lambda part: -part.ms), small_ns

    def _sides(self, slow: int, others: Int64) -> Iterator[tuple[Key, _Side]]:
        for reason, column in self._outside.items():
            yield (-1, reason), _side(column[slow], column[others])
        columns = {key: _side(self._ns[slow, at], self._ns[others, at]) for at, key in enumerate(self._keys)}
        for key, side in columns.items():
            shares = self._shares(key[0], self._rows[slow : slow + 1]) if key[1] == ACTIVITIES[UNKNOWN].value else {}
            if not shares:
                yield key, side
                continue
            usually = self._shares(key[0], self._rows[others]) or {key[1]: (1.0, 0.0)}
            for activity in dict.fromkeys([*shares, *usually]):
                (share, samples), (usual_share, _) = shares.get(activity, (0, 0)), usually.get(activity, (0, 0))
                yield (key[0], activity), _Side(side.slow * share, side.typical * usual_share, side.usual, samples)

    def _shares(self, stage: int, rows: Int64) -> dict[str, tuple[float, float]]:
        """Share and number of samples per activity in the unknown time of a stage; empty for too few samples."""
        if self._samples is None:
            return {}
        samples = self._samples
        mine = samples.select((samples.stage == stage) & ~samples.is_recorded & np.isin(samples.batch, rows))
        if mine.count.sum() < MIN_SAMPLES:
            return {}
        sums = mine.sum_by("activity")
        names = [ACTIVITIES[code].value for code in sums.keys["activity"].tolist()]
        return dict(
            zip(names, zip((sums.ns / sums.ns.sum()).tolist(), sums.samples.tolist(), strict=True), strict=True)
        )

    def _part(self, key: Key, side: _Side, row: int, typical: Int64) -> results.Part:
        ns = side.slow - side.typical
        return results.Part(
            reason=key[1],
            stage=self._stage(key[0]),
            name=self._name(key, row, typical, ns) if ns > 0 else None,
            ms=ns / NS_PER_MS,
            slow_ms=side.slow / NS_PER_MS,
            typical_ms=side.typical / NS_PER_MS,
            usual_ms=side.usual / NS_PER_MS,
            samples=None if side.samples is None else round(side.samples),
            where=self._line(key, row) if ns > 0 else None,
        )

    def _name(self, key: Key, row: int, typical: Int64, ns: float) -> str | None:
        """Cause of most of a part: the GPU work it waited for, or a CUDA function."""
        segments = self._segments
        at = (segments.stage == key[0]) & (np.asarray([one.value for one in ACTIVITIES])[segments.activity] == key[1])
        mine = segments.select(at & ((segments.gpu >= 0) | (segments.name >= 0)))
        grown: dict[int, float] = {}
        for rows, factor in ((np.asarray([row]), 1.0), (typical, -1.0 / len(typical))):
            sums = mine.select(np.isin(mine.batch, rows)).sum_by("gpu", "name")
            for gpu, name, took in zip(sums.keys["gpu"].tolist(), sums.keys["name"].tolist(), sums.ns, strict=True):
                code = gpu if gpu >= 0 else name
                grown[code] = grown.get(code, 0.0) + factor * float(took)
        most = max(grown, key=lambda code: grown[code], default=None)
        return None if most is None or grown[most] < EXPLAINED_SHARE * ns else segments.names[most]

    def _line(self, key: Key, row: int) -> results.Line | None:
        """The line with most samples of the thread."""
        if self._samples is None or key[0] < 0:
            return None
        samples, names = self._samples, [one.value for one in ACTIVITIES]
        at = (samples.batch == row) & (samples.stage == key[0]) & (samples.line >= 0)
        mine = samples.select(at & (samples.activity == names.index(key[1])))
        if not len(mine):
            return None
        sums = mine.sum_by("line")
        frame = samples.lines[int(sums.keys["line"][np.argmax(sums.ns)])]
        return results.Line(function=frame.function, file=frame.file, line=frame.line)

    def _stage(self, path: int) -> str | None:
        """Path of a stage in the batch; None for the batch itself or outside it."""
        paths = self._analysis.stages.paths
        if path < 0 or path == self._batch_path:
            return None
        return path_text(paths.names(path)[len(paths.names(self._batch_path)) :])

    def stages(self, row: int, typical: Int64) -> list[results.StageBeside]:
        """Total time of each stage's ranges."""
        stages = self._analysis.stages
        outer, length = self._analysis.stage_times.outer_batch, (stages.end_ns - stages.start_ns) / NS_PER_MS
        inside = np.flatnonzero(np.isin(outer, np.append(typical, row)))
        places = {batch: place for place, batch in enumerate([row, *typical.tolist()])}
        place = np.asarray([places[batch] for batch in outer[inside].tolist()], dtype=np.int64)
        paths, column = np.unique(np.asarray(stages.paths.code)[inside], return_inverse=True)
        took = np.zeros((len(places), len(paths)))
        np.add.at(took, (place, column), length[inside])
        return [
            results.StageBeside(stage=stage, slow_ms=took[0, at], typical_ms=float(np.median(took[1:, at])))
            for at, path in enumerate(paths.tolist())
            if self._shown[path] == path and (stage := self._stage(path)) is not None
        ]

    def operations(self, row: int, typical: Int64) -> list[results.OperationBeside]:
        """GPU operations that the batch started, largest difference of time first."""
        return self._work.beside(int(np.searchsorted(self._rows, row)), np.searchsorted(self._rows, typical))


def _without_ids(analysis: Analysis, batches: Int64) -> Int64:
    """For each path, the path to count its time for: the one around it if names contain ids."""
    paths, outer = analysis.stages.paths, analysis.stage_times.outer_batch
    rows = np.flatnonzero(np.isin(outer, batches))
    groups = group_rows(np.asarray(paths.code)[rows], outer[rows])
    once = np.bincount(paths.code[rows[groups.first]], minlength=len(paths)) == 1
    shown = np.arange(len(paths))
    if once.sum() > MANY_RARE:
        for path in np.flatnonzero(once).tolist():  # a path comes after the one around it
            shown[path] = shown[paths.parent[path]]
    return shown


class _Operations:
    """GPU operations by starting batch and name: count, ns, copied bytes."""

    def __init__(self, analysis: Analysis, rows: Int64) -> None:
        stages, launches, work = analysis.stages, analysis.launches, analysis.trace.operations
        calls, last = Calls(analysis), stages.end_ns[rows] - 1
        launch, place = expand(*launches.lines.slices(stages.thread[rows], stages.start_ns[rows], last))
        operation = launches.operation[launch]
        names = group_rows(calls.operation[operation])
        self._names = [calls.names[code] for code in calls.operation[operation][names.first].tolist()]
        size = analysis.trace.details.bytes[operation] if len(analysis.trace.details) == len(work) else 0
        copied = np.where(work.kind[operation] == GpuOperationKind.MEMCPY, np.maximum(size, 0), 0)
        cell, count = place * len(names) + names.code, len(rows) * len(names)
        figures = (np.ones(len(operation)), (work.end_ns - work.start_ns)[operation], copied)
        sums = [sum_by_code(cell, figure, count) for figure in figures]
        self._figures = np.reshape(sums, (3, len(rows), len(names)))

    def beside(self, slow: int, others: Int64) -> list[results.OperationBeside]:
        """Operations of one batch, with the medians of others."""
        found = []
        for at, name in enumerate(self._names):
            count, gpu_ns, copied = self._figures[:, slow, at]
            typical_count, typical_ns, typical_copied = np.median(self._figures[:, others, at], axis=1)
            if count or typical_count:
                one = results.OperationBeside(
                    name=name,
                    count=int(count),
                    typical_count=typical_count,
                    gpu_ms=gpu_ns / NS_PER_MS,
                    typical_gpu_ms=typical_ns / NS_PER_MS,
                    copied_bytes=int(copied),
                    typical_copied_bytes=typical_copied,
                )
                found.append(one)
        return sorted(found, key=lambda one: (-abs(one.gpu_ms - one.typical_gpu_ms), one.name))[:MAX_OPERATIONS]


def _side(slow: float, others: Float64) -> _Side:
    return _Side(float(slow), float(np.median(others)), usual(others))


def usual(values: Float64) -> float:
    """Largest usual difference from the median. The spread is robust to outliers: the median absolute deviation, or the
    distance to the upper quartile if that is larger.
    """
    middle = np.median(values)
    deviation = max(float(np.median(np.abs(values - middle))), float(np.quantile(values, 0.75) - middle))
    return SPREADS * deviation / NORMAL_QUARTILE
