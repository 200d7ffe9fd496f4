"""Sweeps over batch sizes until memory runs out, and the search for the largest batch that meets a latency target.

Both get a function that measures one batch size: a process, or a table in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from perfharness.analysis.suites.bench_figures import latency_of
from perfharness.bench.suite.case_run import MEMORY_ENDS
from perfharness.bench.suite.suite import doubling_sizes
from perfharness.model.bench import CaseResult, CaseStatus, Estimate
from perfharness.model.bench_suite import (
    LatencyTarget,
    Meets,
    SearchEnd,
    SearchStep,
    SweepEnd,
    TargetFigure,
    TargetPoint,
)

Measure = Callable[[int], CaseResult]
"""Raises `SweepInterruptedError` after an interrupt."""

ENDS: tuple[CaseStatus, ...] = (*MEMORY_ENDS, "unavailable", "timeout", "not-run")
"""After these no larger batch is tried; after `failed` one more is, since a model may refuse a single batch size."""

MAX_MEASUREMENTS = 40
ALIGNED = (4, 8, 16, 32)
"""Tile sizes of kernels: a batch that fills its tiles may be faster than the next smaller one."""

NEXT_ONES = 2
"""Number of sizes directly above the one found that are also measured."""


class SweepInterruptedError(Exception):
    """A batch size was not measured because of an interrupt. Earlier measurements are kept."""


def _interrupted(size: int, then: str = ";") -> str:
    return f"interrupted before a batch of {size} was measured{then} --resume goes on"


@dataclass(frozen=True)
class Sweep:
    """Cases of growing batch size; `ended_by` None: all sizes were measured."""

    cases: list[CaseResult]
    ended_by: SweepEnd | None = None
    ended_at_batch: int | None = None
    reason: str | None = None


def sweep(measure: Measure, sizes: Iterable[int]) -> Sweep:
    """Measure in order of size until memory ends, a limit is reached, two consecutive sizes fail, or an interrupt."""
    cases: list[CaseResult] = []
    failed = False
    for size in sorted(set(sizes)):
        try:
            found = measure(size)
        except SweepInterruptedError:
            return Sweep(cases, "interrupted", size, _interrupted(size))
        cases.append(found)
        twice = found.status == "failed" and failed
        failed = found.status == "failed"
        if found.status in ENDS or twice:
            reason = f"a batch of {size} is {found.status}: {found.reason or 'no reason given'}"
            return Sweep(cases, found.status, size, reason)
    return Sweep(cases)


def judge(estimate: Estimate | None, target_ms: float) -> Meets:
    """Whether a figure meets a target: decided by the whole interval, undecided where the target is inside."""
    if estimate is None or estimate.interval is None:
        return "not-measured"
    low, high = estimate.interval
    if high <= target_ms:
        return "meets"
    return "misses" if low > target_ms else "cannot-tell"


def judge_by_most(case: CaseResult, figure: TargetFigure, target_ms: float) -> Meets:
    """Whether a median without an interval meets a target: yes with 90 % of the iterations below it, no with none."""
    latency = case.latency
    if figure != "p50" or latency is None or latency.p90 is None:
        return "not-measured"
    if latency.p90.value <= target_ms:
        return "meets"
    return "misses" if latency.min > target_ms else "not-measured"


def largest_batch(
    measure: Measure,
    target_ms: float,
    *,
    figure: TargetFigure = "p99",
    smallest: int = 1,
    largest: int = 1024,
    most: int = MAX_MEASUREMENTS,
) -> LatencyTarget:
    """The largest batch size whose latency certainly meets the target.

    Sizes are doubled until two in a row do not meet it; then the gap is bisected. Since latency may fall
    again where a batch fills its tiles, the next sizes and the next multiples of 4, 8, 16 and 32 above the one found
    are measured too, and the gap above a larger one that meets the target is bisected again.

    Args:
        target_ms: milliseconds.
        largest: the largest size to measure.
        most: measurements at most.
    """
    search = _Search(measure, target_ms, figure, largest, most)
    with suppress(SweepInterruptedError):  # what is known by then is summarized
        search.double(doubling_sizes(largest, smallest))
        while (best := search.best) is not None and not search.is_over:
            search.bisect(best)
            if not any(search.meets(size, "neighbour") for size in search.neighbours()):
                break
    return search.answer()


@dataclass
class _Search:
    """State of the search: measured points by batch size."""

    measure: Measure
    target_ms: float
    figure: TargetFigure
    largest: int
    most: int
    points: dict[int, TargetPoint] = field(default_factory=dict)
    interrupted_at: int | None = None

    def meets(self, size: int, step: SearchStep) -> bool:
        """Measure a size, unless it was measured; whether it certainly meets the target."""
        if size not in self.points and not self.is_over:
            try:
                case = self.measure(size)
            except SweepInterruptedError:
                self.interrupted_at = size
                raise
            self.points[size] = self._point(case, step)
        return size in self.points and self.points[size].meets == "meets"

    def _point(self, case: CaseResult, step: SearchStep) -> TargetPoint:
        size, reason = case.case.batch_size, case.reason
        if case.status != "ok":
            return TargetPoint(batch_size=size, step=step, status=case.status, meets="not-measured", reason=reason)
        estimate = latency_of(case, self.figure)
        verdict = judge(estimate, self.target_ms)
        if verdict == "not-measured":
            verdict = judge_by_most(case, self.figure, self.target_ms)
        if verdict == "not-measured":
            reason = (
                f"{self.figure} has no interval: {estimate.reason if estimate is not None else 'too few iterations'}"
            )
        return TargetPoint(batch_size=size, step=step, status="ok", latency=estimate, meets=verdict, reason=reason)

    @property
    def is_over(self) -> bool:
        return len(self.points) >= self.most

    @property
    def best(self) -> int | None:
        return max((size for size, point in self.points.items() if point.meets == "meets"), default=None)

    def next_not_met(self, size: int) -> int | None:
        """The smallest measured size above that does not meet the target."""
        above = [other for other, point in self.points.items() if other > size and point.meets != "meets"]
        return min(above, default=None)

    def double(self, sizes: Iterable[int]) -> None:
        missed = 0
        for size in sizes:
            missed = 0 if self.meets(size, "doubling") else missed + 1
            if missed > 1 or self.is_over or self.points[size].status in ENDS:
                return

    def bisect(self, low: int) -> None:
        high = self.next_not_met(low)
        while high is not None and high - low > 1 and not self.is_over:
            middle = (low + high) // 2
            if self.meets(middle, "bisection"):
                low = middle
            else:
                high = middle

    def neighbours(self) -> Iterator[int]:
        """Unmeasured sizes above the best at which the target may be met again, smallest first."""
        found = self.best or 0
        near = {found + step for step in range(1, NEXT_ONES + 1)} | {(found // tile + 1) * tile for tile in ALIGNED}
        for size in sorted(near):
            no_room = (other for other, point in self.points.items() if point.status in MEMORY_ENDS)
            if size not in self.points and size < min(no_room, default=self.largest + 1):
                yield size

    def answer(self) -> LatencyTarget:
        best, points = self.best, list(self.points.values())
        undecided = sorted(
            point.batch_size for point in points if point.meets == "cannot-tell" and point.batch_size > (best or 0)
        )
        proven = False
        if best is not None and not undecided and _interval(self.points[best]) is not None:
            above = self.points.get(best + 1)
            proven = best == self.largest or (
                above is not None and (above.meets == "misses" or above.status in MEMORY_ENDS)
            )
        found = LatencyTarget(
            target_ms=self.target_ms,
            figure=self.figure,
            batch_size=best,
            ended_by=self._end(best),
            undecided=undecided,
            proven=proven,
            points=points,
        )
        return found.model_copy(update={"reason": self._sentence(found)})

    def _end(self, best: int | None) -> SearchEnd | None:
        if self.interrupted_at is not None:
            return "interrupted"
        if best == self.largest:
            return "largest-batch"
        after = self.next_not_met(best or 0)
        if after is None:
            return "measurements" if self.is_over else None
        point = self.points[after]
        if point.status == "out-of-memory" or point.status == "memory-limit":
            return point.status
        if point.status != "ok":
            return "failed"
        if point.meets != "misses":
            return "undecided"
        return "measurements" if self.is_over and best is not None and after > best + 1 else "latency"

    def _sentence(self, found: LatencyTarget) -> str:
        target = f"{found.figure} of {found.target_ms:g} ms"
        more = ""
        if found.undecided:
            more = f"; whether {', '.join(map(str, found.undecided))} does is undecided, its interval has the target "
            more += "inside: measure more iterations"
        if self.interrupted_at is not None:
            more += f"; {_interrupted(self.interrupted_at, ',')}"
        if not self.points:
            return f"nothing was measured for a {target}{more}"
        if found.batch_size is None:
            first = self.points[min(self.points)]
            why = first.reason
            if first.status != "ok":
                why = f"a batch of {first.batch_size} is {first.status}: {first.reason}"
            return f"no batch size is known to meet a {target}{more}" + (f" ({why})" if why else "")
        point = self.points[found.batch_size]
        assert point.latency is not None
        interval = _interval(point)
        within = "without an interval" if interval is None else "{:.4g} to {:.4g}".format(*interval)
        ends = {
            "latency": "; the next larger one that was measured does not",
            "out-of-memory": "; the next larger one is out of memory",
            "memory-limit": "; the next larger one is over the memory limit",
            "largest-batch": "; no larger one was requested",
            "failed": "; the next larger one fails",
            "undecided": "" if found.undecided else "; the next larger one has no interval",
            "measurements": f"; after {len(found.points)} measurements no more were made",
        }
        end = ends.get(found.ended_by or "", "")
        return f"a batch of {found.batch_size} meets a {target} ({point.latency.value:.4g} ms, {within}){end}{more}"


def _interval(point: TargetPoint) -> tuple[float, float] | None:
    return None if point.latency is None else point.latency.interval
