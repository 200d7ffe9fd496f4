"""Sweeps over batch sizes until memory runs out, and the search for the largest batch that meets a latency target.

Both get a function that measures one batch size: a process, or a table in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from perfharness.bench.suite.case_run import MEMORY_ENDS
from perfharness.bench.suite.suite import doubling_sizes
from perfharness.model.bench import CaseResult, CaseStatus, Estimate
from perfharness.model.bench_search import LatencyTarget, Meets, SearchEnd, Sweep, TargetFigure, TargetPoint

Measure = Callable[[int], CaseResult]
"""Raises `SweepInterruptedError` after an interrupt."""

ENDS: tuple[CaseStatus, ...] = (*MEMORY_ENDS, "unavailable", "timeout", "not-run")
"""After these no larger batch is tried; after `failed` one more is, since a model may refuse a single batch size."""

MAX_MEASUREMENTS = 40
ALIGNED = (4, 8, 16, 32)
"""Tile sizes of kernels: a batch that fills its tiles may be faster than the next smaller one."""

GO_ON = "--resume goes on"

NEXT_ONES = 2
"""Number of sizes directly above the one found that are also measured."""


class SweepInterruptedError(Exception):
    """A batch size was not measured because of an interrupt. Earlier measurements are kept."""


def sweep(measure: Measure, sizes: Iterable[int]) -> Sweep:
    """Measure in order of size until memory ends, a limit is reached, two consecutive sizes fail, or an interrupt."""
    cases: list[CaseResult] = []
    failed = False
    for size in sorted(set(sizes)):
        try:
            found = measure(size)
        except SweepInterruptedError:
            reason = f"interrupted before a batch of {size} was measured; {GO_ON}"
            return Sweep(cases=cases, ended_by="interrupted", ended_at_batch=size, reason=reason)
        cases.append(found)
        twice = found.status == "failed" and failed
        failed = found.status == "failed"
        if found.status in ENDS or twice:
            reason = f"a batch of {size} is {found.status}: {found.reason or 'no reason given'}"
            return Sweep(cases=cases, ended_by=found.status, ended_at_batch=size, reason=reason)
    return Sweep(cases=cases)


def figure_of(case: CaseResult, figure: TargetFigure) -> Estimate | None:
    """The latency figure of a target; None where there were too few iterations."""
    if case.latency is None:
        return None
    return {
        "mean": case.latency.mean,
        "p50": case.latency.median,
        "p95": case.latency.p95,
        "p99": case.latency.p99,
    }[figure]


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


@dataclass
class _Search:
    """State of the search: measured points by batch size."""

    measure: Measure
    target_ms: float
    figure: TargetFigure
    most: int
    points: dict[int, TargetPoint] = field(default_factory=dict)
    interrupted_at: int | None = None

    def meets(self, size: int, step: str) -> bool:
        """Measure a size, unless it was measured; whether it certainly meets the target."""
        if size not in self.points and not self.is_over:
            try:
                case = self.measure(size)
            except SweepInterruptedError:
                self.interrupted_at = size
                raise
            estimate = figure_of(case, self.figure) if case.status == "ok" else None
            verdict = judge(estimate, self.target_ms)
            if verdict == "not-measured" and case.status == "ok":
                verdict = judge_by_most(case, self.figure, self.target_ms)
            why = case.reason
            if case.status == "ok" and verdict == "not-measured":
                reason = estimate.reason if estimate is not None else "too few iterations"
                why = f"{self.figure} has no interval: {reason}"
            self.points[size] = TargetPoint.model_validate(
                {
                    "batch_size": size,
                    "step": step,
                    "status": case.status,
                    "latency": estimate,
                    "meets": verdict,
                    "reason": why,
                }
            )
        return size in self.points and self.points[size].meets == "meets"

    @property
    def is_over(self) -> bool:
        return len(self.points) >= self.most

    @property
    def ceiling(self) -> int | None:
        """The smallest size that memory did not suffice for; no larger one is tried."""
        return min((size for size, point in self.points.items() if point.status in MEMORY_ENDS), default=None)

    @property
    def best(self) -> int | None:
        return max((size for size, point in self.points.items() if point.meets == "meets"), default=None)

    def next_not_met(self, size: int) -> int | None:
        """The smallest measured size above that does not meet the target."""
        above = [other for other, point in self.points.items() if other > size and point.meets != "meets"]
        return min(above, default=None)


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
    search = _Search(measure, target_ms, figure, most)
    with suppress(SweepInterruptedError):  # what is known by then is summarized
        _search_sizes(search, doubling_sizes(largest, smallest), largest)
    return _summarized(search, largest)


def _search_sizes(search: _Search, sizes: list[int], largest: int) -> None:
    _double(search, sizes)
    while (best := search.best) is not None and not search.is_over:
        _halve(search, best)
        found = search.best
        assert found is not None
        if not any(search.meets(size, "neighbour") for size in _neighbours(search, found, largest)):
            break


def _double(search: _Search, sizes: list[int]) -> None:
    missed = 0
    for size in sizes:
        missed = 0 if search.meets(size, "doubling") else missed + 1
        if missed > 1 or search.is_over or search.points[size].status in ENDS:
            return


def _halve(search: _Search, low: int) -> None:
    """Bisect between a size that meets the target and the next that does not."""
    high = search.next_not_met(low)
    while high is not None and high - low > 1 and not search.is_over:
        middle = (low + high) // 2
        if search.meets(middle, "bisection"):
            low = middle
        else:
            high = middle


def _neighbours(search: _Search, found: int, largest: int) -> Iterator[int]:
    """Unmeasured sizes above the one found at which the target may be met again, smallest first."""
    near = {found + step for step in range(1, NEXT_ONES + 1)} | {(found // tile + 1) * tile for tile in ALIGNED}
    for size in sorted(near):
        ceiling = search.ceiling
        if size <= largest and size not in search.points and (ceiling is None or size < ceiling):
            yield size


def _summarized(search: _Search, largest: int) -> LatencyTarget:
    best, points = search.best, list(search.points.values())
    above = None if best is None else search.points.get(best + 1)
    undecided = sorted(
        point.batch_size for point in points if point.meets == "cannot-tell" and point.batch_size > (best or 0)
    )
    end = _end(search, best, largest)
    answer = LatencyTarget(
        target_ms=search.target_ms,
        figure=search.figure,
        batch_size=best,
        ended_by=end,
        undecided=undecided,
        proven=best is not None
        and _has_interval(search.points[best])
        and not undecided
        and (best == largest or (above is not None and _certainly_not(above))),
        points=points,
    )
    return answer.model_copy(update={"reason": _sentence(answer, search)})


def _within(estimate: Estimate) -> str:
    if estimate.interval is None:
        return "without an interval"
    return "{:.4g} to {:.4g}".format(*estimate.interval)


def _has_interval(point: TargetPoint) -> bool:
    return point.latency is not None and point.latency.interval is not None


def _certainly_not(point: TargetPoint) -> bool:
    """Whether it is certain that a size does not meet the target: it misses it, or there is no memory for it."""
    return point.meets == "misses" or point.status in MEMORY_ENDS


def _end(search: _Search, best: int | None, largest: int) -> SearchEnd | None:
    """Why the search ended."""
    if search.interrupted_at is not None:
        return "interrupted"
    if best == largest:
        return "largest-batch"
    after = search.next_not_met(best or 0)
    if after is None:
        return "measurements" if search.is_over else None
    point = search.points[after]
    if point.status == "out-of-memory" or point.status == "memory-limit":
        return point.status
    if point.status != "ok":
        return "failed"
    if point.meets != "misses":
        return "undecided"
    return "measurements" if search.is_over and best is not None and after > best + 1 else "latency"


def _sentence(found: LatencyTarget, search: _Search) -> str:
    target = f"{found.figure} of {found.target_ms:g} ms"
    straddling = (
        f"; whether {', '.join(map(str, found.undecided))} does is undecided, its interval has the target inside: "
        "measure more iterations"
        if found.undecided
        else ""
    )
    if search.interrupted_at is not None:
        straddling += f"; interrupted before a batch of {search.interrupted_at} was measured, {GO_ON}"
    if found.batch_size is None and not search.points:
        return f"nothing was measured for a {target}{straddling}"
    if found.batch_size is None:
        first = search.points[min(search.points)]
        why = (
            f"a batch of {first.batch_size} is {first.status}: {first.reason}" if first.status != "ok" else first.reason
        )
        return f"no batch size is known to meet a {target}{straddling}" + (f" ({why})" if why else "")
    best = search.points[found.batch_size].latency
    assert best is not None
    end = {
        "latency": "the next larger one that was measured does not",
        "out-of-memory": "the next larger one is out of memory",
        "memory-limit": "the next larger one is over the memory limit",
        "largest-batch": "no larger one was requested",
        "failed": "the next larger one fails",
        "undecided": "" if found.undecided else "the next larger one has no interval",
        "measurements": f"after {len(found.points)} measurements no more were made",
    }.get(found.ended_by or "", "")
    return (
        f"a batch of {found.batch_size} meets a {target} ({best.value:.4g} ms, {_within(best)})"
        f"{'; ' + end if end else ''}{straddling}"
    )
