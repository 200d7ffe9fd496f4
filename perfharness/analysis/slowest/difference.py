"""A slow batch less the typical one, part by part. The parts sum to the difference of the two times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.slowest.culprits import Culprits
from perfharness.analysis.slowest.parts import ON_THE_GPU, BatchParts, OwnWork, batch_parts, own_work
from perfharness.analysis.slowest.readings import BatchReadings, batch_readings
from perfharness.analysis.slowest.results import Evidence, OperationBeside, Part, Reason, StageBeside, Verdict
from perfharness.analysis.slowest.typical import limit_in_spreads, spread
from perfharness.model.result import Float64, path_text
from perfharness.model.trace import Bool, Int64

NS_PER_MS = 1e6
MIN_NS = 1_000.0
"""A difference of less is none."""
MIN_SHARE = 0.02
"""Of the whole difference: smaller parts are not named."""
EXPLAINED_SHARE = 0.5
"""Of the difference in named parts: with less, nothing explains the request."""
GROWN_SHARE = 0.5
"""Of a part, by which the operations themselves must have grown to be its reason."""
MAX_OPERATIONS = 10
TIMES_BYTES = 1.1
"""So many times the usual bytes are more."""

READY_SHARE = 0.9
"""Of the batch, by the thread's own counters."""
READY = "the thread was ready to run nearly all the time: it computed, or no CPU was free"

READ_REASONS = (
    ("collecting", Reason.COLLECTION),
    ("compiling", Reason.COMPILE),
    ("crowded", Reason.CROWDED),
    ("waiting", Reason.OFF_CPU),
)
"""What counters of a thread tell of host time, in this order."""


@dataclass
class Difference:
    """What `SlowRequest` has of it."""

    ms: float | None = None
    parts: list[Part] = field(default_factory=list)
    small_ms: float | None = None
    rest_ms: float | None = None
    verdict: Verdict = "not-compared"
    stages: list[StageBeside] = field(default_factory=list)
    operations: list[OperationBeside] = field(default_factory=list)


@dataclass(frozen=True)
class Compared:
    """A batch beside the typical one."""

    difference: Difference
    typical_ms: float
    usual_ms: float


@dataclass(frozen=True)
class _Key:
    """A column: `path` is a code of `StagePaths`, -1 outside of the batch."""

    path: int
    reason: Reason
    name: str | None = None
    evidence: Evidence = "trace"


@dataclass
class _Found:
    """A part being found; ns. `columns`: of the parts it is made of."""

    key: _Key
    slow_ns: float
    typical_ns: float
    usual_ns: float
    columns: list[int]
    count: int | None = None
    typical_count: float | None = None
    size_bytes: int | None = None
    typical_size_bytes: float | None = None
    detail: str | None = None

    @property
    def ns(self) -> float:
        return self.slow_ns - self.typical_ns


class LoopFigures:
    """All that is known of some batches of one path, the slow and the typical ones.

    Args:
        analysis: of the trace.
        rows: of the batches, in order.
        total_ns, queue_ns, late_ns, outside_ns: of each; NaN in the queue: not known. Being late is a part of it.
        throttled: by reason, which rows of the stage table it touched; None: not known.
    """

    def __init__(
        self,
        analysis: Analysis,
        rows: Int64,
        *,
        total_ns: Float64,
        queue_ns: Float64,
        late_ns: Float64,
        outside_ns: Float64,
        throttled: Mapping[str, Bool] | None,
    ) -> None:
        self._analysis, self._rows, self._total = analysis, rows, total_ns
        self._queue, self._outside, self._throttled = queue_ns, outside_ns, throttled
        self._late = late_ns
        self._parts: BatchParts = batch_parts(analysis, rows)
        self._work: OwnWork = own_work(analysis, rows)
        probe = analysis.host_probe
        self._resolution_ns = MIN_NS if probe is None else max(MIN_NS, float(probe.samples.interval_ns))
        self._readings: dict[str, BatchReadings] = batch_readings(analysis, rows)
        self._paths, self._stage_ns = _stage_times(analysis, rows)
        self._batch_path = int(analysis.stages.paths.code[rows[0]])
        self._culprits = Culprits(analysis)

    def compare(self, row: int, typical: Int64, of: int) -> Compared:
        """A batch with others, all by their rows in the stage table, the others chosen from so many."""
        slow = int(np.searchsorted(self._rows, row))
        others = np.searchsorted(self._rows, typical)
        keys, slow_ns, other_ns = self._columns(slow, others)
        limit = limit_in_spreads(len(others), of + 1, len(keys))
        total = self._total[others]
        difference = float(self._total[slow] - np.median(total))
        usual = max(limit * float(spread(total)), MIN_NS)
        floor = max(self._resolution_ns, MIN_SHARE * abs(difference))
        found, left = _named(keys, slow_ns, other_ns, limit, floor)
        for one in found:
            self._refine(one, slow, others)
        found = _joined(found)
        small_ns = float((slow_ns[left] - np.median(other_ns[:, left], axis=0)).sum())
        if self._analysis.host_probe is None:  # it records each of them
            small_ns += self._lay_readings(found, slow, others, limit, floor)
        found = sorted((one for one in found if abs(one.ns) > 0), key=lambda one: -one.ns)
        named_ns = sum(one.ns for one in found)
        explained = difference > 0 and named_ns >= EXPLAINED_SHARE * difference
        verdict: Verdict = "explained" if explained else "usual" if difference <= usual else "unexplained"
        whole = Difference(
            ms=difference / NS_PER_MS,
            parts=[self._part(one, slow) for one in found],
            small_ms=small_ns / NS_PER_MS,
            rest_ms=(difference - named_ns - small_ns) / NS_PER_MS,
            verdict=verdict,
            stages=self._stages_beside(slow, others),
            operations=self._operations_beside(slow, others),
        )
        return Compared(whole, float(np.median(total)) / NS_PER_MS, usual / NS_PER_MS)

    def _columns(self, slow: int, others: Int64) -> tuple[list[_Key], Float64, Float64]:
        """The parts that the slow batch or most others have: what they are, ns of the one, ns of the others. The first
        columns are those of `BatchParts`.
        """
        every = self._parts.matrix(np.r_[slow, others], np.arange(len(self._parts.keys)))
        chosen = np.flatnonzero((every[0] > 0) | (2 * (every[1:] > 0).sum(axis=0) > len(others)))
        self._chosen = chosen
        keys = [_Key(one.path, one.reason, one.name, one.evidence) for one in (self._parts.keys[at] for at in chosen)]
        values = every[:, chosen].astype(np.float64)
        outside = [(Reason.OUTSIDE, self._outside)]
        queue = self._queue[np.r_[slow, others]]
        if not np.isnan(queue).any():
            outside += [(Reason.QUEUE, self._queue - self._late), (Reason.GENERATOR, self._late)]
        else:  # of some it is not known: then it is a part of what is outside
            outside = [(Reason.OUTSIDE, self._outside + np.nan_to_num(self._queue))]
        for reason, column in outside:
            of_these = column[np.r_[slow, others]]
            if of_these.any():
                keys.append(_Key(-1, reason))
                values = np.column_stack([values, of_these])
        return keys, values[0], values[1:]

    def _refine(self, one: _Found, slow: int, others: Int64) -> None:
        """What about GPU work was different: how many operations, how long, how many bytes."""
        reason = one.key.reason
        if reason not in ON_THE_GPU or reason is Reason.OTHER_WORK:
            return
        names = {self._parts.keys[int(self._chosen[at])].name or "" for at in one.columns}
        count, gpu_ns, size = self._work.of(names, len(self._rows))
        one.count, one.typical_count = int(count[slow]), float(np.median(count[others]))
        grown = float(gpu_ns[slow] - np.median(gpu_ns[others]))
        if reason is Reason.COPY:
            one.size_bytes, one.typical_size_bytes = int(size[slow]), float(np.median(size[others]))
        has_grown = grown >= GROWN_SHARE * abs(one.ns)
        if not has_grown and one.ns > 0:
            if not self._analysis.trace.meta.has_all_calls:
                # Whether the thread waited is not in the trace; it did not for what took no longer.
                one.key = _Key(one.key.path, Reason.HOST)
                one.count = one.typical_count = one.size_bytes = one.typical_size_bytes = None
            return
        reasons = {Reason.KERNEL: (Reason.MORE_KERNELS, Reason.KERNEL_LONGER)}
        reasons[Reason.COPY] = (Reason.MORE_COPIES, Reason.COPY_LONGER)
        if reason in reasons and one.ns > 0:
            more, longer = reasons[reason]
            if one.count > one.typical_count:
                chosen = more
            elif one.size_bytes and one.size_bytes > TIMES_BYTES * (one.typical_size_bytes or 0.0):
                chosen = Reason.COPY_LARGER
            else:
                chosen = longer
            one.key = _Key(one.key.path, chosen, one.key.name)
        self._throttle(one, slow, others)

    def _throttle(self, one: _Found, slow: int, others: Int64) -> None:
        """GPU work that took longer while the clocks were throttled, as those of most others were not."""
        slower = (Reason.KERNEL_LONGER, Reason.COPY_LONGER, Reason.GRAPH)
        if not self._throttled or one.key.reason not in slower or one.ns <= 0:
            return
        why = [
            reason
            for reason, touched in self._throttled.items()
            if touched[self._rows[slow]] and 2 * int(touched[self._rows[others]].sum()) <= len(others)
        ]
        if why:
            one.key, one.detail = _Key(one.key.path, Reason.THROTTLED, one.key.name), ", ".join(why)

    def _lay_readings(self, found: list[_Found], slow: int, others: Int64, limit: float, floor: float) -> float:
        """Say of host time what counters of the thread prove of it. Returns ns of what is left too small to be named.

        In which stage it was, is not known: it is laid onto those whose host time grew.
        """
        small_ns = 0.0
        not_host = self._not_host(np.r_[slow, others])
        for name, reason in READ_REASONS:
            readings = self._readings.get(name)
            if readings is None or np.isnan(readings.least[slow]):
                continue
            least, mean = readings.least[slow], readings.mean[others]
            if reason is Reason.OFF_CPU:  # what is not host time may have been off the CPU, too
                least, mean = max(least - not_host[0], 0.0), np.maximum(mean - not_host[1:], 0.0)
            mean = mean[~np.isnan(mean)]
            usual = 0.0 if not len(mean) else limit * float(spread(mean))
            typical = 0.0 if not len(mean) else float(np.median(mean))
            if not least - typical > max(usual, floor):
                continue
            excess = least - typical
            hosts = [one for one in found if one.key.reason in (Reason.HOST, Reason.SEVERAL) and one.ns > 0]
            for one in sorted(hosts, key=lambda one: -one.ns):
                moved = min(excess, one.ns)
                if moved < floor:
                    break
                key = _Key(one.key.path, reason, None, "readings")
                found.append(_Found(key, typical + moved, typical, max(usual, floor), one.columns))
                one.slow_ns -= moved
                excess, typical = excess - moved, 0.0
                if one.ns <= max(one.usual_ns, floor):
                    small_ns += one.ns
                    found.remove(one)
        ready = self._readings.get("ready")
        length = float((self._analysis.stages.end_ns - self._analysis.stages.start_ns)[self._rows[slow]])
        if ready is not None and ready.least[slow] >= READY_SHARE * length:
            for one in found:
                if one.key.reason is Reason.HOST and one.ns > 0:
                    one.detail = READY
        return small_ns

    def _not_host(self, places: Int64) -> Float64:
        """Nanoseconds of batches in what the trace names."""
        columns = np.asarray([at for at, key in enumerate(self._parts.keys) if key.reason is not Reason.HOST], np.int64)
        return np.asarray(self._parts.matrix(places, columns).sum(axis=1), dtype=np.float64)

    def _part(self, one: _Found, slow: int) -> Part:
        inside = [int(self._chosen[at]) for at in one.columns if at < len(self._chosen)]
        stretches = self._parts.stretches(slow, inside)
        thread = int(self._analysis.stages.thread[self._rows[slow]])
        detail = one.detail or self._culprits.meanwhile(one.key.reason, thread, *stretches)
        if one.key.reason is Reason.QUEUE and one.ns > 0:
            detail = self._culprits.in_service_meanwhile(int(self._rows[slow]), float(self._queue[slow]))
        return Part(
            reason=one.key.reason,
            stage=self._stage(one.key.path),
            name=one.key.name,
            ms=one.ns / NS_PER_MS,
            slow_ms=one.slow_ns / NS_PER_MS,
            typical_ms=one.typical_ns / NS_PER_MS,
            usual_ms=one.usual_ns / NS_PER_MS,
            evidence=one.key.evidence,
            count=one.count,
            typical_count=one.typical_count,
            size_bytes=one.size_bytes,
            typical_size_bytes=one.typical_size_bytes,
            detail=detail,
            where=self._culprits.line(thread, *stretches) if one.ns > 0 else None,
        )

    def _stage(self, path: int) -> str | None:
        """A path in the batch; None: the batch itself, or outside of it."""
        paths = self._analysis.stages.paths
        if path < 0 or path == self._batch_path:
            return None
        return path_text(paths.names(path)[len(paths.names(self._batch_path)) :])

    def _stages_beside(self, slow: int, others: Int64) -> list[StageBeside]:
        beside = []
        for at, path in enumerate(self._paths.tolist()):
            stage, took = self._stage(path), self._stage_ns[:, at]
            one, typical = float(took[slow]), float(np.median(took[others]))
            if stage is not None and (one or typical):
                beside.append(StageBeside(stage=stage, slow_ms=one / NS_PER_MS, typical_ms=typical / NS_PER_MS))
        return beside

    def _operations_beside(self, slow: int, others: Int64) -> list[OperationBeside]:
        """The operations whose time differs most."""
        beside = []
        of_these = np.isin(self._work.batch, np.r_[slow, others])
        for name in sorted({self._work.names[code] for code in np.unique(self._work.name[of_these]).tolist()}):
            count, gpu_ns, _ = self._work.of({name}, len(self._rows))
            one = OperationBeside(
                name=name, count=int(count[slow]), typical_count=float(np.median(count[others])),
                gpu_ms=float(gpu_ns[slow]) / NS_PER_MS, typical_gpu_ms=float(np.median(gpu_ns[others])) / NS_PER_MS,
            )  # fmt: skip
            if one.count or one.typical_count:
                beside.append(one)
        return sorted(beside, key=lambda one: -abs(one.gpu_ms - one.typical_gpu_ms))[:MAX_OPERATIONS]


def _stage_times(analysis: Analysis, rows: Int64) -> tuple[Int64, Float64]:
    """Paths of the stages in batches, and ns of each batch (a row) in each, all of its ranges."""
    stages = analysis.stages
    place = np.full(len(stages) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    batch = place[analysis.stage_times.outer_batch]
    inside = np.flatnonzero(batch >= 0)
    paths, column = np.unique(stages.paths.code[inside], return_inverse=True)
    took = np.zeros((len(rows), len(paths)))
    np.add.at(took, (batch[inside], column.ravel()), (stages.end_ns - stages.start_ns)[inside])
    return paths.astype(np.int64), took


def _named(
    keys: list[_Key], slow_ns: Float64, other_ns: Float64, limit: float, floor: float
) -> tuple[list[_Found], list[int]]:
    """Parts that differ by more than usual, and the columns of the others.

    First each alone; of what is left all of one kind in a stage (many kernels), then all of a stage.
    """
    found: list[_Found] = []
    left = list(range(len(keys)))
    for is_first, grouping in _GROUPINGS:
        groups: dict[Hashable, list[int]] = {}
        for at in left:
            groups.setdefault(grouping(keys[at]), []).append(at)
        for columns in groups.values():
            if len(columns) == 1 and not is_first:
                continue
            slow, others = float(slow_ns[columns].sum()), other_ns[:, columns].sum(axis=1)
            typical, usual = float(np.median(others)), limit * float(spread(others))
            if abs(slow - typical) > max(usual, floor):
                found.append(_Found(_common_key([keys[at] for at in columns]), slow, typical, usual, columns))
                left = [at for at in left if at not in columns]
    return found, left


_GROUPINGS: tuple[tuple[bool, Callable[[_Key], Hashable]], ...] = (
    (True, lambda key: (key.path, key.reason, key.name, key.evidence)),
    (False, lambda key: (key.path, key.reason, key.evidence)),
    (False, lambda key: key.path),
)


def _common_key(keys: list[_Key]) -> _Key:
    reasons, names = {key.reason for key in keys}, {key.name for key in keys}
    evidence: Evidence = "samples" if any(key.evidence == "samples" for key in keys) else "trace"
    reason = reasons.pop() if len(reasons) == 1 else Reason.SEVERAL
    return _Key(
        keys[0].path, reason, names.pop() if len(names) == 1 and reason is not Reason.SEVERAL else None, evidence
    )


def _joined(found: list[_Found]) -> list[_Found]:
    """Those that are called the same after all, as one."""
    return list(_join(found))


def _join(found: list[_Found]) -> Iterator[_Found]:
    groups: dict[_Key, list[_Found]] = {}
    for one in found:
        groups.setdefault(one.key, []).append(one)
    for same in groups.values():
        first = same[0]
        for more in same[1:]:
            first.slow_ns, first.typical_ns = first.slow_ns + more.slow_ns, first.typical_ns + more.typical_ns
            first.usual_ns = max(first.usual_ns, more.usual_ns)
            first.columns = first.columns + more.columns
        yield first
