"""`bench --find-batch`: the largest batch of each cell that fits in memory, or that meets a latency target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfharness.analysis.suites.bench_figures import latency_of
from perfharness.bench.suite import doubling_sizes
from perfharness.model.bench import CaseResult, CaseStatus, LatencyPercentile
from perfharness.model.bench_suite import BatchSearch

Measure = Callable[[int], CaseResult | None]
"""Measures a batch size; None after an interrupt."""

MEMORY_ENDS: tuple[CaseStatus, ...] = ("out-of-memory", "memory-limit")
ENDS: tuple[CaseStatus, ...] = (*MEMORY_ENDS, "unavailable", "timeout", "not-run")
"""No larger batch is tried after these. After `failed` one more is: a model may refuse a single batch size."""


def search_batches(
    measure: Measure,
    cell: Mapping[str, Any],
    smallest: int,
    largest: int,
    target_ms: float | None = None,
    figure: LatencyPercentile = "p95",
) -> BatchSearch:
    """The largest batch size that runs, or whose latency meets a target.

    Sizes double until memory runs out, a status in `ENDS` occurs, or two sizes in a row fail or miss the target. With a
    target, the gap above the largest size that meets it is then halved until the next size misses it. The target is
    compared with the upper end of the figure's interval, or with the figure if it has no interval.
    """
    found: dict[int, CaseResult] = {}
    interrupted: int | None = None

    def fits(size: int) -> bool:
        nonlocal interrupted
        case = found.get(size) or measure(size)
        if case is None:
            interrupted = size
            return False
        found[size] = case
        return _fits(case, target_ms, figure)

    missed = 0
    for size in doubling_sizes(largest, smallest):
        missed = 0 if fits(size) else missed + 1
        if interrupted or missed > 1 or found[size].status in ENDS:
            break
    good = [size for size, case in found.items() if _fits(case, target_ms, figure)]
    best = max(good, default=None)
    above = min((size for size in found if size > (best or 0) and size not in good), default=None)
    while target_ms is not None and best and above and above - best > 1 and not interrupted:
        middle = (best + above) // 2
        if fits(middle):
            best = middle
        elif not interrupted:
            above = middle
    common = {**cell, "batch_sizes": list(found), "batch_size": best, "target_ms": target_ms}
    common["figure"] = figure if target_ms is not None else None
    if interrupted:
        reason = f"interrupted before a batch of {interrupted} was measured; continue with --resume"
        return BatchSearch(**common, ended_by="interrupted", ended_at_batch=interrupted, reason=reason)
    if above is None:
        return BatchSearch(**common, ended_by="largest-batch", reason=f"{best} is the largest batch of the range")
    case = found[above]
    if case.status == "ok":
        value = latency_of(case, figure)
        shown = "needs more iterations" if value is None else f"is {value.value:.4g} ms"
        reason = f"the {figure} of a batch of {above} {shown}; the target is {target_ms:g} ms"
        return BatchSearch(**common, ended_by="latency", ended_at_batch=above, reason=reason)
    reason = f"status of a batch of {above}: {case.status}: {case.reason or 'no reason given'}"
    return BatchSearch(**common, ended_by=case.status, ended_at_batch=above, reason=reason)


def _fits(case: CaseResult, target_ms: float | None, figure: LatencyPercentile) -> bool:
    if case.status != "ok" or target_ms is None:
        return case.status == "ok"
    latency = latency_of(case, figure)
    return latency is not None and (latency.value if latency.high is None else latency.high) <= target_ms
