"""Overhead of tracing: traced against untraced launches, in turns."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from perfharness.analysis.comparison.compare import Judgement, Pair, Reason, Rule, compare
from perfharness.analysis.statistics import ALPHA
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.rounding import figure
from perfharness.runs.series.model import TRACED, UNTRACED, WHOLE, Overhead, Series, Summary

MUCH, VERY_MUCH = 0.10, 0.20
"""Shares of the untraced time."""

COMPARED = ("cpu_time", "cpu_time_p50")
"""Metrics of a stage. A few slow batches do not change the median."""


def overhead_of(series: Series) -> dict[str, Any]:
    """Fields of a series: overhead of tracing per figure, conclusion, and findings."""
    untraced, traced = (series.summary.get(label, {}) for label in (UNTRACED, TRACED))
    overhead = {
        path: {
            name: _overhead(series, path, name)
            for name in {**untraced.get(path, {}), **traced.get(path, {})}
            if path == WHOLE or name in COMPARED
        }
        for path in {**untraced, **traced}
    }
    times = {path: found["cpu_time"] for path, found in overhead.items() if path and "cpu_time" in found}
    batches = {path: times[path] for path in series.loops if path in times}
    return {
        "overhead": overhead,
        "conclusion": _conclusion(batches or times),
        "findings": _findings(times),
    }


def _overhead(series: Series, path: str, name: str) -> Overhead:
    sides = []
    for label in (UNTRACED, TRACED):
        found: Summary | None = series.summary.get(label, {}).get(path, {}).get(name)
        if found is None or found.mean is None:
            return Overhead(reason=(found and found.reason) or f"not measured in {label} launches")
        rows = series.measured(label)
        values = np.array([row.figures[path][name] for row in rows], dtype=np.float64)
        sides.append((values, np.array([row.place for row in rows], dtype=np.int64)))
    (untraced, untraced_at), (traced, traced_at) = sides
    pair = Pair(untraced, traced, untraced_at, traced_at)
    (judged,) = compare([pair], Rule(min_effect=MUCH))
    if judged.ratio is None:
        return Overhead(reason="the value of a launch is missing or 0")
    low = high = reason = None
    if judged.interval is not None and isfinite(judged.interval.high):
        low, high = figure(judged.interval.low - 1), figure(judged.interval.high - 1)
    elif judged.reason is Reason.ONE_LAUNCH:
        reason = "one launch per kind is not enough; use a larger --repeat"
    else:
        reason = "the launches differ too much for an interval"
    added = Overhead(overhead=figure(judged.ratio - 1), low=low, high=high, reason=reason)
    if name in COMPARED and is_undecided(added):
        return added.model_copy(update={"launches_needed": _launches_needed(pair, judged)})
    return added


def is_undecided(one: Overhead) -> bool:
    """Whether the interval includes 10 %, or traced launches were more than 10 % faster."""
    if one.low is None or one.high is None or one.overhead is None:
        return True
    return one.low <= MUCH < one.high or one.overhead < -MUCH


def _launches_needed(pair: Pair, judged: Judgement) -> int | None:
    """Launches of each kind that probably decide whether the overhead is above 10 %; None if unknown.

    `compare` judges equality by an interval of 90 %, but here that of 95 % counts.
    """
    if judged.ratio is not None and judged.ratio <= 1 + MUCH:
        (judged,) = compare([pair], Rule(alpha=ALPHA / 2, min_effect=MUCH))
    return judged.launches_needed


def _conclusion(times: dict[str, Overhead]) -> str:
    """Sentence about the batch that tracing slows down most."""
    known = {path: one for path, one in times.items() if one.overhead is not None}
    if not known:
        reason = next((one.reason for one in times.values() if one.reason), "no batch was measured")
        return f"Overhead of tracing unknown: {reason}."
    path = max(known, key=lambda name: (known[name].low is not None, known[name].low, known[name].overhead))
    one = known[path]
    of = f"the time per batch of {path}" if len(times) > 1 else "the time per batch"
    if one.low is None:
        return f"Tracing changes {of} by {percent(one.overhead)}, without an interval: {one.reason}."
    interval = f"{percent(one.low)} to {percent(one.high)}"
    if not is_undecided(one):
        return f"Tracing changes {of} by {percent(one.overhead)} (95 %: {interval})."
    hint = f"Try --repeat {one.launches_needed}." if one.launches_needed else "Measure on a quiet machine."
    return f"Undecided: tracing changes {of} by {interval} (95 %). {hint}"


def percent(share: float | None) -> str:
    """Format a change in percent, with its sign."""
    return "unknown" if share is None else f"{100 * share:+.1f} %"


def _findings(times: dict[str, Overhead]) -> list[Finding]:
    slowed = {path: one for path, one in times.items() if one.low is not None and one.low > MUCH}
    if not slowed:
        return []
    is_error = any((one.low or 0) > VERY_MUCH for one in slowed.values())
    worst = max(one.overhead or 0 for one in slowed.values())
    return [
        Finding(
            "tracing-costs-much",
            Severity.ERROR if is_error else Severity.WARNING,
            f"Traced, {listed(list(slowed), most=3)} took up to {100 * worst:.0f} % longer.",
            "Quote untraced times. The tracer may limit these stages; use fewer ranges.",
        )
    ]
